/** What went wrong; `fatal` if trying again would not help. */
export class WherryError extends Error {
  constructor(message, { fatal = false, detail = "" } = {}) {
    super(detail ? `${message}: ${detail}` : message);
    this.name = "WherryError";
    this.fatal = fatal;
  }
}

export const wrong = (text) => new WherryError(text, { fatal: true });

"""What the HTTP port serves to browsers and tools: the console, the interactive reference, figures, schemas."""

"""TLS: the handshake, in memory; and certificates that change under it.

The certificates beside this file were made for these tests, hold for a hundred years, and guard nothing.
"""

import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from wherry.model.errors import InvalidInput
from wherry.security.tls import Tls, TlsFiles

HERE = Path(__file__).parent / "certificates"
AUTHORITY = HERE / "authority.pem"


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Make a handshake without a socket, and return the client's side of it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    ours.do_handshake()
    return theirs


def client(certificate: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=AUTHORITY)
    if certificate is not None:
        context.load_cert_chain(HERE / f"{certificate}.pem", HERE / f"{certificate}.key")
    return context


def name_of(side: ssl.SSLObject) -> object:
    shown = side.getpeercert()
    assert shown is not None
    return dict(pair for part in shown["subject"] for pair in part)["commonName"]  # type: ignore[misc]


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    files = TlsFiles(tmp_path / "server.pem", tmp_path / "server.key")
    put(files, "first")
    return files


def put(files: TlsFiles, name: str, key: str | None = None) -> None:
    """Put new files in the place of the old, as a renewal does it."""
    for source, place in ((f"{name}.pem", files.certificate), (f"{key or name}.key", files.key)):
        fresh = place.with_suffix(".new")
        shutil.copy(HERE / source, fresh)
        fresh.replace(place)


def test_a_client_that_trusts_the_authority_is_let_in(files):
    side = shake(Tls(files).context, client())
    assert name_of(side) == "first"
    assert side.version() == "TLSv1.3"


def test_anything_older_than_tls_1_2_is_turned_away(files):
    old = client()
    with pytest.warns(DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shake(Tls(files).context, old)


def test_new_files_count_from_the_next_handshake_on(files):
    tls = Tls(files)
    assert not tls.refresh()
    put(files, "second")
    assert name_of(shake(tls.context, client())) == "first"
    assert tls.refresh()
    assert name_of(shake(tls.context, client())) == "second"
    assert not tls.refresh()


@pytest.mark.parametrize("broken", ["not a pair", "rubbish", "gone"])
def test_broken_new_files_leave_the_old_ones_in_use(files, broken, caplog):
    tls = Tls(files)
    if broken == "not a pair":
        put(files, "second", key="first")
    elif broken == "rubbish":
        files.certificate.write_text("rubbish")
    else:
        files.certificate.unlink()
    assert not tls.refresh()
    assert "the old ones still are" in caplog.text
    assert name_of(shake(tls.context, client())) == "first"
    put(files, "second")
    assert tls.refresh()
    assert name_of(shake(tls.context, client())) == "second"


def test_a_client_shows_a_certificate_where_one_is_asked_for(files):
    strict = Tls(TlsFiles(files.certificate, files.key, AUTHORITY)).context
    shake(strict, client("second"))
    with pytest.raises(ssl.SSLError):
        shake(strict, client())
    lenient = Tls(TlsFiles(files.certificate, files.key, AUTHORITY, client_required=False)).context
    shake(lenient, client("second"))
    shake(lenient, client())


@pytest.mark.parametrize(("name", "message"), [("encrypted", "the key is encrypted"), ("second", "mismatch")])
def test_files_that_cannot_be_used_are_reported_at_the_start(name, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        Tls(TlsFiles(HERE / "first.pem", HERE / f"{name}.key"))
    assert caught.value.field == "tls.certificate, tls.key"


def test_a_missing_authority_is_reported_at_the_start(files):
    with pytest.raises(InvalidInput, match="No such file"):
        Tls(TlsFiles(files.certificate, files.key, files.key.with_name("none")))


def test_nothing_follows_the_handshake_by_itself(files):
    """Check that no ticket follows: a client that reads in one thread and writes in another meets both in OpenSSL."""
    served = Tls(files).context
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = served.wrap_bio(to_server, to_client, server_side=True)
    theirs = client().wrap_bio(to_client, to_server, server_hostname="localhost")
    for side in (theirs, ours, theirs):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert to_client.pending == 0
    ours.do_handshake()
    assert theirs.version() == "TLSv1.3"
    assert to_client.pending == 0

"""The TLS of a listener, as tools that are not ours find it: openssl s_client and sslscan."""

import xml.etree.ElementTree as ElementTree
from urllib.parse import urlsplit

import pytest


@pytest.fixture
def port(start_service):
    return urlsplit(start_service(tls=True).tls_url).port


def s_client(run, certificates, port, *words):
    result = run(["openssl", "s_client", "-connect", f"localhost:{port}", "-CAfile", certificates.ca,
                  "-verify_return_error", *words], input="")
    return result.stdout + result.stderr


@pytest.mark.parametrize("version", ["tls1_2", "tls1_1", "tls1"])
def test_older_versions(run, certificates, port, version):
    """Offered at the lowest level of security, so that nothing on this side stands in the way."""
    text = s_client(run, certificates, port, f"-{version}", "-cipher", "ALL:@SECLEVEL=0")
    assert "alert protocol version" in text and "Cipher is (NONE)" in text


@pytest.mark.parametrize("suite, good", [("TLS_AES_256_GCM_SHA384", True), ("TLS_CHACHA20_POLY1305_SHA256", True),
                                         ("TLS_AES_128_GCM_SHA256", True), ("TLS_AES_128_CCM_8_SHA256", False)])
def test_suites(run, certificates, port, suite, good):
    text = s_client(run, certificates, port, "-ciphersuites", suite)
    assert (f"New, TLSv1.3, Cipher is {suite}" in text) == good
    assert ("alert handshake failure" in text) != good
    if good:
        assert "Verify return code: 0 (ok)" in text
        # What is resumed would skip the certificate.
        assert "Compression: NONE" in text and "Early data was not sent" in text
        assert "Post-Handshake New Session Ticket arrived" not in text


def test_what_is_spoken(run, certificates, port):
    assert "ALPN protocol: http/1.1" in s_client(run, certificates, port, "-alpn", "h2,http/1.1")
    assert "No ALPN negotiated" in s_client(run, certificates, port, "-alpn", "h2")
    assert "No ALPN negotiated" in s_client(run, certificates, port)


def test_renegotiation(run, certificates, port):
    """There is none in TLS 1.3; the client's own library says so when it is asked to."""
    result = run(["openssl", "s_client", "-connect", f"localhost:{port}", "-CAfile", certificates.ca], input="R\n")
    text = result.stdout + result.stderr
    assert "RENEGOTIATING" in text and "wrong ssl version" in text


def test_scanner(run, port):
    result = run(["sslscan", "--no-colour", "--xml=-", f"localhost:{port}"], check=True, timeout=60)
    test = ElementTree.fromstring(result.stdout).find("ssltest")
    enabled = {f"{p.get('type')} {p.get('version')}" for p in test.findall("protocol") if p.get("enabled") == "1"}
    assert enabled == {"tls 1.3"}
    ciphers = {c.get("cipher") for c in test.findall("cipher")}
    assert ciphers == {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
    # Without finite fields, whose exchanges are dear to a server, and free to whoever asks for them.
    groups = {g.get("name").split()[0] for g in test.findall("group")}
    assert groups == {"x25519", "secp256r1", "secp384r1"}
    assert test.find("renegotiation").get("supported") == "0"
    assert all(h.get("vulnerable") == "0" for h in test.findall("heartbleed"))

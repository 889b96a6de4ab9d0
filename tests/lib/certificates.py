"""Authorities and certificates for tests: right ones, and each wrong in one way."""

import os
import subprocess
from pathlib import Path

from lib.failure import HarnessError


class Certificates:
    """An authority of our own and what it signed, as PEM files.

    ca; server (localhost, 127.0.0.1, ::1), site (example.org and names in it), wrong_host,
    expired, client, each NAME.pem and NAME.key; other_ca with other_server and other_client: an authority nobody trusts.
    """

    def __init__(self, directory):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        names = "DNS:localhost,IP:127.0.0.1,IP:::1"
        for authority, prefix in (("ca", ""), ("other_ca", "other_")):
            self._authority(authority)
            self._sign(f"{prefix}server", authority, names, "serverAuth")
            self._sign(f"{prefix}client", authority, "DNS:client", "clientAuth")
        self._sign("site", "ca", "DNS:example.org,DNS:*.example.org", "serverAuth")
        self._sign("wrong_host", "ca", "DNS:wrong.example", "serverAuth")
        self._sign("expired", "ca", names, "serverAuth", expired=True)
        self.ca = self.directory / "ca.pem"
        self.other_ca = self.directory / "other_ca.pem"

    def pair(self, name):
        """(certificate, key) of one of the names above."""
        return self.directory / f"{name}.pem", self.directory / f"{name}.key"

    def _openssl(self, *arguments):
        result = subprocess.run(["openssl", *map(str, arguments)], cwd=self.directory,
                                capture_output=True, timeout=60, check=False)
        if result.returncode != 0:
            raise HarnessError(f"openssl {arguments[0]}: {result.stderr.decode()}")

    def _key(self, name):
        self._openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256",
                      "-out", f"{name}.key")
        os.chmod(self.directory / f"{name}.key", 0o600)

    def _authority(self, name):
        self._key(name)
        self._openssl("req", "-x509", "-new", "-key", f"{name}.key", "-subj", f"/CN=Berth test {name}",
                      "-days", "30", "-out", f"{name}.pem")

    def _sign(self, name, authority, names, usage, expired=False):
        self._key(name)
        (self.directory / f"{name}.ext").write_text(
            f"subjectAltName={names}\nbasicConstraints=CA:FALSE\nextendedKeyUsage={usage}\n")
        self._openssl("req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}",
                      "-out", f"{name}.csr")
        if expired:
            # `openssl x509` has no start date before now in this version; `openssl ca` has.
            (self.directory / f"{authority}.cnf").write_text(
                "[ca]\ndefault_ca=d\n[d]\nnew_certs_dir=.\ndatabase=index\nserial=serial\n"
                "default_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n")
            (self.directory / "index").write_text("")
            (self.directory / "serial").write_text("1000\n")
            self._openssl("ca", "-batch", "-notext", "-config", f"{authority}.cnf",
                          "-cert", f"{authority}.pem", "-keyfile", f"{authority}.key",
                          "-in", f"{name}.csr", "-out", f"{name}.pem",
                          "-extfile", f"{name}.ext",
                          "-startdate", "200101000000Z", "-enddate", "200201000000Z")
        else:
            self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem",
                          "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "30",
                          "-extfile", f"{name}.ext", "-out", f"{name}.pem")

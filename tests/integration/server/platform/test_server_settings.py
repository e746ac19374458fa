"""`trainyard server` from a settings file: TLS, a check without a start, and mistakes told in one sentence."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.request

import pytest

from platforms import Up, _end_agents

PROGRAM = [sys.executable, "-m", "trainyard.cli.main", "server", "--config"]


def run(tmp_path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "server.toml"
    file.write_text(text)
    env = Up(tmp_path).env
    return subprocess.run(
        [*PROGRAM, str(file), *options], env=env, capture_output=True, text=True, timeout=60
    )


def test_right_settings_are_only_checked_when_that_is_asked(tmp_path):
    done = run(
        tmp_path, f'data = "{tmp_path}/data"\nport = 0\nsimulated_devices = {{ V100 = 8 }}\n', "--check"
    )
    assert (done.returncode, done.stdout) == (0, "The settings are right.\n")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prot = 1", "a setting 'prot' that there is not"),
        ("port = 99999", "There is no port 99999"),
        ('tls_certificate = "x"', "needs both tls_certificate and tls_key"),
        ('local_node = "yes"', "true or false"),
        ("port = ", "is not TOML"),
    ],
)
def test_a_mistake_is_one_sentence_with_a_hint(tmp_path, line, said):
    done = run(tmp_path, line + "\n", "--check")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow  # a server is started
def test_a_server_speaks_tls_when_it_has_a_certificate(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run(
        [*made, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    file = tmp_path / "server.toml"
    file.write_text(
        f'data = "{tmp_path}/data"\nport = 0\ntls_certificate = "{certificate}"\ntls_key = "{key}"\nlocal_node = false\n'
    )
    up = Up(tmp_path)
    with (tmp_path / "err").open("w") as log:
        process = subprocess.Popen(
            [*PROGRAM, str(file), "--json"], env=up.env, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["url"].startswith("https://127.0.0.1:")
            request = urllib.request.Request(
                ready["url"] + "/api/v1/nodes", headers={"authorization": f"Bearer {ready['token']}"}
            )
            trust = ssl.create_default_context(cafile=str(certificate))
            with urllib.request.urlopen(request, context=trust, timeout=20) as answer:
                assert answer.headers["strict-transport-security"]
                assert json.load(answer)["items"] == []
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            process.stdout.close()
            _end_agents(tmp_path)
    assert process.returncode == 0

#!/usr/bin/env python3
"""What `coldpress pull` writes is found by huggingface_hub, and what huggingface_hub writes is not fetched again by `coldpress pull`.

Both programs meet a small hub on the loopback interface, which counts what is asked of it. Beside that: certificates are checked. Needs the package huggingface_hub:

    python3 -m venv target/hub && target/hub/bin/pip install huggingface_hub
    target/hub/bin/python tools/check_hub_layout.py target/debug/coldpress
"""

import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHECKPOINT, GGUF = "org/checkpoint", "org/gguf"
INDEX = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
FILES = {
    CHECKPOINT: {
        "README.md": b"read me\n",
        "additional_chat_templates/tools.jinja": b"{{ tools }}",
        "chat_template.jinja": b"{{ messages }}",
        "config.json": b"{}",
        "empty.txt": b"",
        "generation_config.json": b"{}",
        "model-00001-of-00002.safetensors": os.urandom(3_000_000),
        "model-00002-of-00002.safetensors": os.urandom(1_000_000),
        "model.safetensors.index.json": json.dumps(INDEX).encode(),
        "pytorch_model.bin": b"the same again",
        "tokenizer.json": b'{"model": {}}',
    },
    GGUF: {
        "Q4_0/model-00001-of-00002.gguf": os.urandom(700_000),
        "Q4_0/model-00002-of-00002.gguf": os.urandom(500_000),
        "model-Q8_0.gguf": os.urandom(900_000),
    },
}
LARGE = (".gguf", ".safetensors", ".bin")


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def etag(path, content):
    return hashlib.sha256(content).hexdigest() if path.endswith(LARGE) else git_hash(content)


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bodies = []
    pause_s = 0.0

    def log_message(self, *arguments):
        pass

    def reply(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for start in range(0, len(body), 100_000):
            self.wfile.write(body[start : start + 100_000])
            time.sleep(Hub.pause_s)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0]
        if api := re.fullmatch(r"/api/models/(\w+/\w+)(/revision/\w+)?", path):
            return self.reply(json.dumps({"id": api[1], "modelId": api[1], "sha": COMMIT, "siblings": []}).encode())
        if tree := re.fullmatch(r"/api/models/(\w+/\w+)/tree/\w+", path):
            return self.reply(json.dumps([self.entry(*file) for file in FILES[tree[1]].items()]).encode())
        file = re.fullmatch(r"/(\w+/\w+)/resolve/\w+/(.*)", path)
        content = FILES.get(file[1], {}).get(file[2]) if file else None
        if content is None:
            return self.reply(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        if self.command == "GET":
            Hub.bodies.append(file[2])
        headers = {"ETag": f'"{etag(file[2], content)}"', "X_Repo_Commit": COMMIT}
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first = int(wanted[1])
            last = min(int(wanted[2] or len(content) - 1), len(content) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
            return self.reply(content[first : last + 1], 206, **headers)
        self.reply(content, **headers)

    @staticmethod
    def entry(path, content):
        entry = {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
        if path.endswith(LARGE):
            entry["lfs"] = {"oid": etag(path, content), "size": len(content), "pointerSize": 134}
        return entry


def pull(program, cache, *arguments, **environment):
    command = [program, "pull", *arguments, "--cache-dir", str(cache), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


def pulled(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out)


def check(name, holds, *figures):
    print(f"{'ok  ' if holds else 'FAIL'}  {name}", *figures)
    if not holds:
        sys.exit(1)


def ours_is_found(program, cache, hub):
    """The cache that `coldpress pull` fills, through the eyes of huggingface_hub."""
    checkpoint = pulled(pull(program, cache, CHECKPOINT))
    gguf = pulled(pull(program, cache, f"{GGUF}:q4_0"))
    source = (
        "import sys, huggingface_hub as h; repo, cache = sys.argv[1:];"
        "print(h.snapshot_download(repo, cache_dir=cache, local_files_only=True))"
    )
    for repo, report in ((CHECKPOINT, checkpoint), (GGUF, gguf)):
        command = [sys.executable, "-c", source, repo, str(cache)]
        offline = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
        snapshot = offline.stdout.strip()
        wanted = cache / f"models--{repo.replace('/', '--')}" / "snapshots" / COMMIT
        check(f"{repo}: snapshot_download offline gives the folder", pathlib.Path(snapshot) == wanted, offline.stderr[-300:])
        for file in report["files"]:
            path = hub.try_to_load_from_cache(repo, file["path"], cache_dir=cache)
            same = isinstance(path, str) and pathlib.Path(path).read_bytes() == FILES[repo][file["path"]]
            check(f"{repo}: try_to_load_from_cache gives {file['path']}", same)
    names = {file["path"] for file in checkpoint["files"]}
    check("the checkpoint is all but README and .bin", names == set(FILES[CHECKPOINT]) - {"README.md", "pytorch_model.bin"})
    scanned = hub.scan_cache_dir(cache)
    sizes = {repo.repo_id: repo.size_on_disk for repo in scanned.repos}
    blobs = {repo: sum({file["path"]: file["bytes"] for file in report["files"]}.values()) for repo, report in ((CHECKPOINT, checkpoint), (GGUF, gguf))}
    # config.json and generation_config.json are one blob.
    blobs[CHECKPOINT] -= 2
    check("scan_cache_dir has nothing to complain of and the right sizes", not scanned.warnings and sizes == blobs, sizes)
    Hub.bodies.clear()
    for repo, report in ((CHECKPOINT, checkpoint), (GGUF, gguf)):
        for file in report["files"]:
            hub.hf_hub_download(repo, file["path"], cache_dir=cache)
    check("hf_hub_download of all files fetches none of them", not Hub.bodies, Hub.bodies)


def theirs_is_found(program, cache, hub):
    """The cache that huggingface_hub fills, through the eyes of `coldpress pull`."""
    snapshot = hub.snapshot_download(CHECKPOINT, cache_dir=cache)
    first = hub.hf_hub_download(GGUF, "model-Q8_0.gguf", cache_dir=cache)
    Hub.bodies.clear()
    checkpoint, gguf = pulled(pull(program, cache, CHECKPOINT)), pulled(pull(program, cache, f"{GGUF}:q8_0"))
    check("pull of what snapshot_download wrote fetches nothing", not Hub.bodies, Hub.bodies)
    check("the path is the same", (checkpoint["path"], gguf["path"]) == (snapshot, first))
    check("and so it is offline", pulled(pull(program, cache, CHECKPOINT, HF_HUB_OFFLINE="1"))["path"] == snapshot)


def locks_are_shared(program, cache, hub):
    """Who downloads a blob keeps the other program from it."""
    from huggingface_hub.utils import WeakFileLock
    import filelock

    content = FILES[GGUF]["model-Q8_0.gguf"]
    lock = cache / ".locks" / "models--org--gguf" / f"{etag('x.gguf', content)}.lock"
    lock.parent.mkdir(parents=True)
    with WeakFileLock(lock):
        process = pull(program, cache, f"{GGUF}:q8_0")
        note = process.stderr.readline()
        check("pull waits for a lock of huggingface_hub", "another program downloads" in note and process.poll() is None, note.strip())
    pulled(process)
    Hub.pause_s = 0.2
    other = tempfile.mkdtemp(dir=cache)
    lock = pathlib.Path(other) / lock.relative_to(cache)
    process = pull(program, other, f"{GGUF}:q8_0")
    while not Hub.bodies or not lock.exists():
        time.sleep(0.01)
    try:
        with WeakFileLock(lock, timeout=0.3):
            waited = False
    except filelock.Timeout:
        waited = True
    check("huggingface_hub waits for a lock of pull", waited and process.poll() is None)
    Hub.pause_s = 0.0
    pulled(process)


def certificates_are_checked(program, cache, hub):
    """Over HTTPS a server that nobody vouches for is refused at once, and taken with SSL_CERT_FILE."""
    if not shutil.which("openssl"):
        print("SKIPPED: no openssl to make a certificate with")
        return
    key, certificate = cache / "key.pem", cache / "certificate.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=CA:FALSE -keyout {key} -out {certificate}"
    subprocess.run(make.split(), check=True, capture_output=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *connection: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {"HF_ENDPOINT": f"https://localhost:{server.server_port}"}
    started = time.monotonic()
    process = pull(program, cache, f"{GGUF}:q8_0", **environment)
    _, said = process.communicate(timeout=60)
    refused = process.returncode == 1 and "SSL_CERT_FILE" in said and time.monotonic() - started < 10
    check("a certificate that nobody vouches for is refused at once", refused, said.strip())
    report = pulled(pull(program, cache, f"{GGUF}:q8_0", SSL_CERT_FILE=str(certificate), **environment))
    check("and taken with SSL_CERT_FILE", pathlib.Path(report["path"]).exists())


def main():
    program = os.path.abspath(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in [name for name in os.environ if name.startswith("HF_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder).resolve()
        settings = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(folder / "home")}
        os.environ.update(settings, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
        import huggingface_hub as hub

        print(f"huggingface_hub {hub.__version__}")
        for name, work in (("ours", ours_is_found), ("theirs", theirs_is_found), ("locks", locks_are_shared), ("https", certificates_are_checked)):
            Hub.bodies.clear()
            (folder / name).mkdir()
            work(program, folder / name, hub)
    print("all is well")


if __name__ == "__main__":
    main()

"""Speech beside everything else: large uploads, and threads that leave chat its cores."""

from __future__ import annotations

import http.client
import os

import psutil

from ferrum_local.audio_types import SttOptions
from ferrum_local.stt.model import n_threads, n_workers
from tests.audio.conftest import TINY
from tests.audio.test_transcriptions import BOUNDARY
from tests.conftest import serve
from tests.contract.live import health

MIB = 1 << 20
UPLOAD_BYTES = 100 * MIB


def rss_bytes(pid: int) -> int:
    """Of the process and of those it started."""
    process = psutil.Process(pid)
    return sum(p.memory_info().rss for p in (process, *process.children(recursive=True)))


def test_perf_01_a_large_upload_goes_to_disk_and_holds_nobody_up(speech_models: None) -> None:
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    ).encode()
    tail = f"\r\n--{BOUNDARY}--\r\n".encode()
    block = os.urandom(MIB)
    for server in serve("--whisper-model", f"tiny={TINY}", "--max-upload-mb", "200"):
        before = rss_bytes(server.pid)
        connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
        connection.putrequest("POST", "/v1/audio/transcriptions")
        connection.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
        connection.putheader("Content-Length", str(len(head) + UPLOAD_BYTES + len(tail)))
        connection.endheaders()
        connection.send(head)
        for _ in range(UPLOAD_BYTES // MIB):
            connection.send(block)
        assert health(server) == 200, "others are answered while the upload is under way"
        assert rss_bytes(server.pid) - before < UPLOAD_BYTES / 2
        connection.send(tail)
        response = connection.getresponse()
        assert response.status == 400, "noise bytes are no audio"
        response.read()
        connection.close()
        assert rss_bytes(server.pid) - before < UPLOAD_BYTES / 2


def test_perf_02_transcriptions_leave_chat_its_cores_unless_told_otherwise() -> None:
    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 0
    cores = cores or os.cpu_count() or 1
    assert 1 <= n_threads(SttOptions()) <= max(1, cores // 2)
    assert 1 <= n_workers(SttOptions()) <= 2
    assert (n_threads(SttOptions(threads=7)), n_workers(SttOptions(workers=5))) == (7, 5)

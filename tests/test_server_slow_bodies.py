"""Bodies that don't come: a connection isn't held for ever by half of one."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.serving import run, toy_service
from tests.test_server_operation import COMPLETIONS, SHORT, asking, listening

SOON = 0.05  # seconds
HEAD = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
BODY = json.dumps(SHORT)


@pytest.mark.parametrize(
    "sent",
    [
        f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n{BODY[:9]}",
        f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n",
        f"{HEAD}Transfer-Encoding: chunked\r\n\r\n9\r\n{BODY[:9]}\r\n",
    ],
    ids=["half", "none", "chunks"],
)
def test_half_a_body_is_408_and_ends_its_connection(sent: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        async with (
            toy_service() as served,
            listening(served, body_timeout=SOON) as (_, client),
        ):
            reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            writer.write(sent.encode())
            answer = await reader.read()  # to the end of the connection
            writer.close()
            head, _, body = answer.decode().partition("\r\n\r\n")
            assert head.startswith("HTTP/1.1 408 ")
            assert "connection: close" in head.lower()
            error = json.loads(body)["error"]
            assert (error["code"], error["type"]) == (408, "timeout_error")
            assert error["message"] == "body: it was not there in time; allowed are 0.05 seconds"
            assert served.engine.load.running == 0

    run(main)
    [record] = [record for record in caplog.records if record.msg == "request"]
    assert record.__dict__["fields"]["status"] == 408


def test_what_is_there_is_waited_for_no_longer_and_an_answer_as_long_as_it_takes() -> None:
    async def main() -> None:
        async with toy_service() as served, asking(served, body_timeout=1e-9) as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.post(COMPLETIONS, json=SHORT)).status_code == 200

    run(main)

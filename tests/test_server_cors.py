"""Browsers: pages of other sites reach the server only from the origins that it is told of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from surefoot.server.settings import Settings, resolve
from surefoot.types import SurefootError
from tests.serving import NAME, run, toy_service
from tests.test_server_operation import COMPLETIONS, SHORT, asking

PAGE, OTHER = "https://page.example", "https://other.example"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, x-request-id",
}


def answered(method: str, origin: str, headers: Mapping[str, str], **settings: Any) -> httpx.Response:
    """What a page of an origin gets."""
    found: list[httpx.Response] = []

    async def main() -> None:
        async with toy_service() as served, asking(served, **settings) as client:
            body = SHORT if method == "POST" else None
            given = {"Origin": origin, **headers}
            found.append(await client.request(method, COMPLETIONS, json=body, headers=given))

    run(main)
    return found[0]


def names(response: httpx.Response) -> set[str]:
    return {name for name in response.headers if name.startswith("access-control-")}


@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
def test_without_the_setting_there_are_no_such_headers(method: str) -> None:
    assert not names(answered(method, PAGE, PREFLIGHT))


@pytest.mark.parametrize("allowed", [(PAGE,), (OTHER, PAGE), ("*",)])
def test_a_page_that_is_allowed_may_ask_first_and_then_post(allowed: tuple[str, ...]) -> None:
    told = "*" if allowed == ("*",) else PAGE
    first = answered("OPTIONS", PAGE, PREFLIGHT, cors_origin=allowed, api_key="k")  # which bears no key
    assert first.status_code == 200
    assert first.headers["access-control-allow-origin"] == told
    assert "POST" in first.headers["access-control-allow-methods"]
    assert PREFLIGHT["Access-Control-Request-Headers"] == first.headers["access-control-allow-headers"]
    then = answered("POST", PAGE, {"Authorization": "Bearer k"}, cors_origin=allowed, api_key="k")
    assert then.status_code == 200
    assert then.headers["access-control-allow-origin"] == told
    assert "x-request-id" in then.headers["access-control-expose-headers"].lower()


def test_a_page_learns_of_mistakes_too() -> None:
    refused = answered("POST", PAGE, {}, cors_origin=(PAGE,), api_key="k")
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


def test_another_page_is_refused() -> None:
    first = answered("OPTIONS", OTHER, PREFLIGHT, cors_origin=(PAGE,))
    assert first.status_code == 400
    assert "access-control-allow-origin" not in first.headers
    then = answered("POST", OTHER, {}, cors_origin=(PAGE,))
    assert "access-control-allow-origin" not in then.headers  # so that its browser keeps the answer from it


@pytest.mark.parametrize("allowed", [("*",), (PAGE,)])
def test_no_page_may_send_what_its_browser_knows_of_the_user(allowed: tuple[str, ...]) -> None:
    for method in ("OPTIONS", "POST"):
        found = answered(method, PAGE, {**PREFLIGHT, "Cookie": "a=b"}, cors_origin=allowed)
        assert "access-control-allow-credentials" not in found.headers


def test_a_file_names_one_or_several(tmp_path: Any) -> None:
    path = tmp_path / "serve.toml"
    for text, origins in ((f'"{PAGE}"', (PAGE,)), (f'["{PAGE}", "http://localhost:3000"]', None)):
        path.write_text(f'model = "m"\ncors_origin = {text}\n')
        found = resolve({}, path, {}, {}).cors_origin
        assert found == (origins or (PAGE, "http://localhost:3000"))


@pytest.mark.parametrize("wrong", [f"{PAGE}/", f"{PAGE}/a", "page.example", "", "ftp://a", "https://a b"])
def test_what_no_browser_sends_is_no_origin(wrong: str) -> None:
    with pytest.raises(SurefootError, match=r"^cors_origin: "):
        Settings(NAME, cors_origin=(wrong,))
    if wrong:
        with pytest.raises(SurefootError, match=r"is no origin such as https://example\.org, nor \*$"):
            Settings(NAME, cors_origin=(wrong,))

"""The application: endpoints, and what goes around them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from surefoot.server import chat, completions, tokens
from surefoot.server.connection import Connection
from surefoot.server.errors import ApiError
from surefoot.server.metrics import CONTENT_TYPE, Metrics
from surefoot.server.middleware import Key, Requests, error_response, note
from surefoot.server.mistakes import body_error
from surefoot.server.service import Service, service
from surefoot.server.settings import Settings

HEALTH, METRICS = "/health", "/metrics"

router = APIRouter()


def create_app(serving: Service, settings: Settings, metrics: Metrics) -> FastAPI:
    """The API over a service. settings: of them, the key, the limits of a body and the
    origins of pages."""
    app = FastAPI(title="surefoot", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service, app.state.metrics = serving, metrics
    for part in (completions, chat, tokens):
        app.include_router(part.router)
    app.include_router(router)
    app.add_exception_handler(HTTPException, _no_endpoint)
    app.add_exception_handler(RequestValidationError, _bad_body)
    app.add_middleware(  # innermost first
        Connection, max_body=settings.max_body_bytes, patience=settings.body_timeout
    )
    if settings.api_key is not None:
        app.add_middleware(Key, key=settings.api_key, free=(HEALTH,))
    app.add_middleware(Requests, quiet=(HEALTH, METRICS))
    if settings.cors_origin:  # outermost: what a browser asks beforehand bears no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Retry-After"),
        )
    return app


@router.head(HEALTH, include_in_schema=False)  # as some that watch over servers ask
@router.get(HEALTH)
async def health(serving: Annotated[Service, Depends(service)]) -> JSONResponse:
    """200 while requests are taken, 503 once the server closes."""
    is_open = serving.engine.is_open
    return JSONResponse({"status": "ok" if is_open else "closing"}, 200 if is_open else 503)


@router.get(METRICS, response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Everything counted, in Prometheus's text format."""
    found: Metrics = request.app.state.metrics
    return Response(found.render(), media_type=CONTENT_TYPE)


async def _no_endpoint(request: Request, error: Exception) -> Response:
    """Nothing here raises an HTTPException but the router, for what it has no endpoint for."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"method: {method} given at {path}; allowed is {allowed}"
        told = ApiError(405, "invalid_request_error", message)
    elif error.status_code == 404:
        known = ", ".join(request.app.openapi()["paths"])
        told = ApiError(404, "not_found_error", f"path: {path} is unknown; allowed is {known}")
    else:
        told = ApiError(error.status_code, "invalid_request_error", f"request: {error.detail}")
    response = _told(request, told)
    response.headers.update(error.headers or {})
    return response


async def _bad_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _told(request, body_error(error.errors()))


def _told(request: Request, error: ApiError) -> Response:
    note(request, failure=error.kind, param=error.param)
    return error_response(error)

"""What routers and benchmarks ask a server about itself."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

import eyas
from eyas.config import EngineConfig, ModelConfig
from eyas.server.options import ServerOptions
from eyas.server.service import Service
from tests.server.fakes import FakeClient, LiveServer, live_server

ROUTES = {
    "/server_info": "/get_server_info",
    "/model_info": "/get_model_info",
    "/v1/loads": "/loads",
    "/get_load": None,
}
PATHS = [*ROUTES, *(older for older in ROUTES.values() if older)]


def test_routers_find_what_they_read(http: httpx.Client, fake: FakeClient):
    server, model = http.get("/server_info").json(), http.get("/model_info").json()
    assert server["version"] == eyas.__version__
    assert (server["context_length"], server["max_req_input_len"]) == (512, 511)
    assert (server["max_total_num_tokens"], server["tp_size"], server["dp_size"]) == (4096, 1, 1)
    assert server["max_running_requests"] == EngineConfig().scheduler.num_seats
    assert server["internal_states"] == [{"avg_spec_accept_length": 2.25}]
    assert model["is_generation"] is True and model["architectures"] == ["FakeForCausalLM"]
    for info in (server, model):
        assert info["model_path"] == info["tokenizer_path"] == "tiny"
        assert info["served_model_name"] == "tiny"


def test_probes_and_versions_of_other_servers_work(http: httpx.Client) -> None:
    assert http.get("/ping").status_code == http.post("/ping").status_code == 200
    assert http.get("/version").json() == {"version": eyas.__version__}


def test_routers_find_the_load(http: httpx.Client, fake: FakeClient):
    assert http.get("/get_load").json() == [
        {
            "dp_rank": 0,
            "num_reqs": 0,
            "num_running_reqs": 0,
            "num_waiting_reqs": 0,
            "num_tokens": 4,
        }
    ]
    assert http.get("/load").json() == {"server_load": 0}
    loads = http.get("/v1/loads").json()
    assert loads["dp_rank_count"] == len(loads["loads"]) == 1 and loads["timestamp"]
    (load,) = loads["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_total_reqs"]) == (0, 0, 0)
    assert (load["num_used_tokens"], load["max_total_num_tokens"]) == (4, 10)
    assert load["token_usage"] == 0.4 and load["utilization"] == load["cache_hit_rate"] == 0


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
def test_the_prefix_cache_can_be_emptied(http: httpx.Client, fake: FakeClient, path: str):
    assert http.post(path).status_code == 200 and fake.num_forgotten == 1
    fake.info = None
    assert http.post(path).status_code == 503


@pytest.mark.parametrize(("path", "older"), [pair for pair in ROUTES.items() if pair[1]])
def test_older_spellings_say_the_same(http: httpx.Client, fake: FakeClient, path: str, older: str):
    new, old = http.get(path).json(), http.get(older).json()
    assert new.keys() == old.keys() and new.get("loads") == old.get("loads")


def test_the_routes_want_the_key_where_keys_are_set_and_never_tell_it(directory: Path):
    with live_server(FakeClient(directory), api_keys=("a-secret-key",)) as server:
        for path in PATHS:
            assert httpx.get(server.url + path).status_code == 401
            response = httpx.get(
                server.url + path, headers={"authorization": "Bearer a-secret-key"}
            )
            assert response.status_code == 200 and "secret" not in response.text


def test_directories_of_this_machine_are_not_told(directory: Path):
    client = FakeClient(directory)
    config = EngineConfig(model=ModelConfig(path=str(directory)))
    service = Service(config, ServerOptions(served_model_names=("shown",)), client)
    with LiveServer(service) as server:
        for path in PATHS:
            response = httpx.get(server.url + path)
            assert response.status_code == 200 and str(directory) not in response.text
        assert httpx.get(f"{server.url}/model_info").json()["model_path"] == "shown"


def test_without_an_engine_there_is_nothing_to_tell(directory: Path):
    client = FakeClient(directory)
    client.info = None
    with live_server(client) as server:
        for path in PATHS:
            response = httpx.get(server.url + path)
            assert response.status_code == 503
            assert json.loads(response.text)["error"]["code"] == "engine_starting"

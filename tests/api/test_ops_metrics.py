"""/metrics: a fixed number of series, whatever clients send, under fixed names."""

import secrets

from prometheus_client.parser import text_string_to_metric_families

from tests.support.application import Application, application

NAMES = [
    "flare_http_requests",
    "flare_requests_running",
    "flare_requests_waiting",
    "flare_prompt_tokens",
    "flare_generation_tokens",
    "flare_time_to_first_token_seconds",
    "flare_inter_token_latency_seconds",
    "flare_end_to_end_latency_seconds",
    "flare_queue_time_seconds",
    "flare_kv_blocks_used",
    "flare_prefix_cache_hits",
    "flare_preemptions",
    "flare_graph_launches",
    "flare_padded_tokens",
    "flare_step_duration_seconds",
    "flare_speculative_accepted",
    "flare_speculative_proposed",
    "flare_load_phase_seconds",
]


async def series(built: Application) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    answer = await built.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def churn(built: Application, count: int) -> None:
    for _ in range(count):
        word = secrets.token_hex(6)
        body = {"model": f"x{word}", "messages": [{"role": "user", "content": "hi"}]}
        answer = await built.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 404
        for path in (f"/{word}", f"/v1/{word}", f"/v1/models/{word}", f"/docs/{word}"):
            assert (await built.http.get(path)).status_code == 404
        await built.http.request(f"M{word}".upper(), "/v1/models")


async def test_series_do_not_grow_with_what_clients_send() -> None:
    """H55: names and paths of clients are no labels."""
    async with application() as built:
        await churn(built, 3)
        await series(built)  # the first scrape adds its own route's series
        before = await series(built)
        await churn(built, 200)
        after = await series(built)
    assert after == before
    labels = {value for _, pairs in after for _, value in pairs}
    assert "unmatched" in labels and "/v1/models/{model_id:path}" in labels


async def test_names_of_the_contract_and_counts() -> None:
    async with application() as built:
        body = {"model": "scripted", "prompt": "abcd", "max_tokens": 5, "ignore_eos": True}
        assert (await built.http.post("/v1/completions", json=body)).status_code == 200
        text = (await built.http.get("/metrics")).text
        assert await built.metric("flare_generation_tokens_total") == 5
        assert await built.metric("flare_prompt_tokens_total") == 4
        assert await built.metric("flare_graph_launches_total") >= 5
    families = {family.name for family in text_string_to_metric_families(text)}
    assert set(NAMES) <= families, set(NAMES) - families

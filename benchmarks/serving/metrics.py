"""What is measured: names, units, and which direction is better."""

from app.bench.figures import Metric

METRICS = (
    Metric("start_s", "start to first token", "s", False, 2),
    Metric("single_ttft_s", "single: first token", "s", False, 3),
    Metric("single_tok_s", "single: decode", "tok/s", True, 0),
    Metric("prefill_tok_s", "prefill 2048", "tok/s", True, 0),
    Metric("burst8_tok_s", "burst of 8", "tok/s", True, 0),
    Metric("burst8_ttft_s", "burst of 8: first token p50", "s", False, 2),
    Metric("burst8_gap_ms", "burst of 8: gap p99", "ms", False, 0),
    Metric("burst32_tok_s", "burst of 32", "tok/s", True, 0),
    Metric("burst32_ttft_s", "burst of 32: first token p50", "s", False, 2),
    Metric("burst32_gap_ms", "burst of 32: gap p99", "ms", False, 0),
    Metric("burst32_rss_mib", "burst of 32: peak memory", "MiB", False, 0),
    Metric("arrival_ttft_s", "arrival: first token", "s", False, 2),
    Metric("arrival_gap_ms", "arrival: gap p99 of the streams", "ms", False, 0),
    Metric("arrival_tok_s", "arrival: the streams meanwhile", "tok/s", True, 0),
)

"""The table of what a turn costs at the recorder."""

from bench.recorder.summary import table


def test_the_bar_is_for_each_turn() -> None:
    run = {
        "kind": "run",
        "commit": "c",
        "machine": {"processor": "p", "cpus": 2, "kernel": "k"},
        "settings": {"episodes": 4},
    }
    played = {
        "kind": "played",
        "template": "qwen3",
        "client": "aiohttp",
        "turns": 5,
        "tokens": 100,
        "segments": 4,
        "delivered": 20,
    }
    text = table([run, *({**played, "cpu_seconds": seconds} for seconds in (0.04, 0.041))])
    assert "| 2.00 | met |" in text
    assert "| 2.05 | missed |" in text

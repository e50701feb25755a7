r"""Fills the claims of the GPU examples.

    python download.py MODEL [--models DIRECTORY] [--data DIRECTORY]

downloads a model of the Hugging Face Hub, such as Qwen/Qwen3-8B, into a directory of its name below `--models`, and writes train.parquet and
test.parquet into `--data`. Both have the columns `messages` and `answer`. Training rows are the English ones of DAPO-Math-17k, without
repetitions (open-r1/DAPO-Math-17k-Processed); the test is MATH-500. A download that broke off continues when it is started again.
"""

import argparse
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
from huggingface_hub import hf_hub_download, snapshot_download

TRAINING = ("open-r1/DAPO-Math-17k-Processed", "en/train-00000-of-00001.parquet")
TEST = ("HuggingFaceH4/MATH-500", "test.jsonl")
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
# DAPO's own instruction, which asks for a line instead of a box.
PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer (without quotes) "
    "where $Answer is the answer to the problem."
)
SUFFIX = 'Remember to put your answer on its own line after "Answer:".'

Row = dict[str, Any]


def training_rows(rows: Iterable[Mapping[str, Any]], test: Collection[Row]) -> list[Row]:
    """Turns rows with `prompt` and `solution`, the answer, into rows of the examples. Leaves out repetitions and problems of the test."""
    known = {_problem(row) for row in test}
    result = []
    for row in rows:
        text = row["prompt"].strip().removeprefix(PREFIX).removesuffix(SUFFIX)
        made = _row(text, row["solution"])
        if _problem(made) not in known:
            known.add(_problem(made))
            result.append(made)
    return result


def test_rows(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Turns rows with `problem` and `answer` into rows of the examples."""
    return [_row(row["problem"], row["answer"]) for row in rows]


def write(rows: list[Row], file: Path) -> None:
    """Writes a Parquet file, which has its name only once it is whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), partial)
    partial.replace(file)
    print(f"{file}: {len(rows)} rows", flush=True)


def _row(problem: str, answer: str) -> Row:
    message = {"role": "user", "content": f"{problem.strip()}\n\n{INSTRUCTION}"}
    return {"messages": [message], "answer": answer.strip()}


def _problem(row: Row) -> str:
    """Returns the text by which problems are compared: without differences in white space."""
    return " ".join(row["messages"][0]["content"].split())


def main() -> None:
    """Download and write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--models", type=Path, default=Path("/models"), help="default: %(default)s")
    parser.add_argument("--data", type=Path, default=Path("/data/math"), help="default: %(default)s")
    options = parser.parse_args()
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        raise SystemExit(f"this pod has no usable GPU ({error}): see docs/gpus.md, The node") from error
    print(f"GPU: {torch.cuda.get_device_name()}", flush=True)

    with Path(hf_hub_download(*TEST, repo_type="dataset")).open(encoding="utf-8") as lines:
        test = test_rows(json.loads(line) for line in lines)
    table = pyarrow.parquet.read_table(hf_hub_download(*TRAINING, repo_type="dataset"), columns=["prompt", "solution"])
    write(test, options.data / "test.parquet")
    write(training_rows(table.to_pylist(), test), options.data / "train.parquet")

    directory = options.models / options.model.rpartition("/")[2]
    snapshot_download(options.model, local_dir=directory, allow_patterns=["*.json", "*.safetensors", "*.txt"])
    print(f"{directory}: complete", flush=True)


if __name__ == "__main__":
    main()

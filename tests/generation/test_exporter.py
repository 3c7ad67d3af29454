"""`generation.save`: what every target has in common. The engine here is JAX itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest

import jax2tf
from jax2tf.converters import generation
from jax2tf.converters.generation import conversations as plans
from jax2tf.converters.generation import loops, target
from jax2tf.converters.generation.conversations import Conversation, Runner, Turn
from jax2tf.converters.generation.decoder import Decoder
from jax2tf.tools.cli.main import main
from tests.support import tiny_decoder as tiny

TALK: Sequence[Conversation] = [(Turn((3, 1, 4, 1, 5), 3), Turn((9, 2, 6, 5), 2))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InJax(target.Target):
  """An engine that runs the step by its rules; `shift` moves its tokens."""

  name: ClassVar[str] = "jax"
  example: ClassVar[str] = "model.bin"

  shift: int = 0
  rounded: bool = False

  def check(self, decoder: Decoder) -> None:
    decoder.check_rows_only()

  def pieces(self, decoder: Decoder) -> Sequence[int]:
    return [4]

  def rounds(self) -> bool:
    return self.rounded

  def advice(self, engine: str) -> str:
    return f"look at {engine}"

  def write(self, decoder: Decoder, place: Path) -> Path:
    place.mkdir()
    (place / "written").write_bytes(b"model")
    return place / "written"

  def runners(self, decoder: Decoder, written: Path) -> Mapping[str, Runner]:
    run = loops.in_jax(decoder, self.cut(decoder), by_rules=True)

    def moved(conversations: Sequence[Conversation]) -> list[Any]:
      return [
        dataclasses.replace(
          made, turns=tuple(tuple((t + self.shift) % 59 for t in turn) for turn in made.turns)
        )
        for made in run(conversations)
      ]

    return {"JAX": moved}


@pytest.fixture(autouse=True)
def only_jax(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(target, "MODULES", {"jax": f"{__name__}:InJax"})


def _saved(decoder: Decoder, path: Path, **options: Any) -> generation.Saved:
  return generation.save(decoder, path, target="jax", conversations=TALK, **options)


def test_a_file_is_written_with_its_report(tmp_path: Path) -> None:
  saved = _saved(tiny.sums_decoder(), tmp_path / "model.bin")
  assert saved.path.read_bytes() == b"model"
  assert saved.size == 5
  assert saved.report.ok
  assert saved.report.verdict == "verified: the tokens that JAX chooses are 5 of 5 in JAX"
  assert '"equal": 5' in saved.report.json()
  assert [file.name for file in tmp_path.iterdir()] == ["model.bin"]


def test_nothing_is_written_if_tokens_differ(tmp_path: Path) -> None:
  path = tmp_path / "model.bin"
  path.write_bytes(b"before")
  with pytest.raises(generation.ExportError) as refused:
    _saved(tiny.sums_decoder(), path, shift=1, overwrite=True)
  assert "5 of 5 tokens are not JAX's" in str(refused.value)
  assert "look at JAX\nnothing was written" in str(refused.value)
  assert path.read_bytes() == b"before"


def test_rounded_weights_may_change_tokens_up_to_a_share(tmp_path: Path) -> None:
  saved = _saved(tiny.sums_decoder(), tmp_path / "model.bin", shift=1, rounded=True)
  assert saved.report.agreement == {"JAX": (0, 5)}
  with pytest.raises(generation.ExportError, match="fewer than least_agreement"):
    _saved(tiny.sums_decoder(), tmp_path / "m.bin", shift=1, rounded=True, least_agreement=0.9)


def test_a_wrong_rule_is_refused_before_anything_is_written(tmp_path: Path) -> None:
  with pytest.raises(jax2tf.ArgumentError, match="rules") as refused:
    _saved(tiny.sums_decoder(rules={"end_index": 0}), tmp_path / "model.bin")
  assert "with end_index by the rules" in str(refused.value)
  assert not [*tmp_path.iterdir()]


def test_a_model_that_differs_in_pieces_in_jax_is_said_to(tmp_path: Path) -> None:
  """As of libraries whose mask for several tokens is not that of the same tokens one by one."""

  def step(
    params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
  ) -> Any:
    windowed = mask & (jnp.arange(mask.shape[-1]) >= positions[:, :1, None] - 1)
    return tiny.sums_step(params, tokens, positions, cache, windowed)

  with pytest.raises(generation.ExportError, match="in JAX itself, this model computes something"):
    _saved(tiny.sums_decoder(step=step), tmp_path / "model.bin")
  saved = _saved(tiny.sums_decoder(step=step), tmp_path / "model.bin", own_pieces=True)
  assert "in JAX itself, 1 of 1 conversations differ" in saved.report.verdict
  assert saved.report.ok


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"target": "jaks"}, "there is no such target; give one of"),
    ({"sift": 1}, "target 'jax' has no such option; its options are shift, rounded"),
    ({"conversations": []}, "give at least one"),
    ({"conversations": [(Turn((59,), 1),)]}, "the vocabulary has 59 tokens"),
    ({"conversations": [(Turn((1,) * 60, 5),)]}, "it has 65 tokens, and the cache 64"),
  ],
)
def test_arguments_are_checked_first(options: dict[str, Any], said: str, tmp_path: Path) -> None:
  with pytest.raises(jax2tf.ArgumentError) as refused:
    generation.save(tiny.sums_decoder(), tmp_path / "m.bin", **{"target": "jax", **options})
  assert said in str(refused.value)


def test_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
  (tmp_path / "m.bin").touch()
  with pytest.raises(FileExistsError):
    _saved(tiny.sums_decoder(), tmp_path / "m.bin")


def test_a_file_is_compared_again(tmp_path: Path) -> None:
  saved = _saved(tiny.sums_decoder(), tmp_path / "model.bin")
  decoder = tiny.sums_decoder()
  assert generation.compare(decoder, saved.path, target="jax", conversations=TALK).ok
  wrong = generation.compare(decoder, saved.path, target="jax", conversations=TALK, shift=1)
  assert not wrong.ok
  with pytest.raises(FileNotFoundError):
    generation.compare(decoder, tmp_path / "gone", target="jax")


def _command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
  """(exit code, what --json prints, stderr)."""
  with pytest.raises(SystemExit) as ended:
    main(["generate", *arguments, "--for", "jax", "--json"])
  captured = capsys.readouterr()
  return int(ended.value.code or 0), json.loads(captured.out), captured.err


def test_the_command_exports_and_compares(
  tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(plans, "planned", lambda *_: TALK)
  decoder, path = "tests.support.tiny_decoder:sums_decoder", str(tmp_path / "model.bin")
  code, answer, _ = _command(capsys, "export", decoder, "--out", path)
  assert (code, answer["bytes"], answer["path"]) == (0, 5, path)
  code, answer, _ = _command(capsys, "compare", path, decoder, "--option", "shift=1")
  assert (code, answer["ok"]) == (1, False)
  code, answer, said = _command(capsys, "export", decoder, "--out", path)
  assert (code, "--overwrite" in said) == (2, True)
  code, _, said = _command(capsys, "run", path, "some text")
  assert (code, "it runs no text" in said) == (2, True)
  code, _, said = _command(capsys, "export", "tests.support.tiny_decoder:params", "--out", path)
  assert (code, "params is dict; name a" in said) == (2, True)

"""The lines of the table: what is generated, by which engines, and what is to be reached."""

from __future__ import annotations

from dataclasses import dataclass, replace

OURS = "sardonyx"
OPTIMUM = "optimum"
TORCH = "torch"
GENAI = "genai"

LENGTHS = (8, 32, 128, 512)


@dataclass(frozen=True)
class Cell:
    """One call: `new` tokens behind a prompt of `prompt` tokens, with so many beams. Sound has no prompt."""

    prompt: int
    new: int
    beams: int = 1

    @property
    def words(self) -> str:
        beams = f", {self.beams} beams" if self.beams > 1 else ""
        return f"{self.new} tokens behind {self.prompt}{beams}" if self.prompt else f"{self.new} tokens{beams}"


@dataclass(frozen=True)
class Row:
    """A model with its cells: `kind` is what the engines make of its folder, `goals` the ratios to reach.

    `first` is the ratio to reach until the first token. `memory` is whether this row tells of it: its cell is the
    longest that the model allows.
    """

    name: str
    what: str
    model: str
    kind: str
    cells: tuple[Cell, ...]
    goals: tuple[tuple[str, float], ...] = ()
    first: float = 0.0
    memory: float = 0.0


DECODER = "decoder"
TEXT = "text to text"
SOUND = "sound"


def _lengths(new: int) -> tuple[Cell, ...]:
    return tuple(Cell(length, new, beams) for beams in (1, 5) for length in LENGTHS)


_OVER = ((OPTIMUM, 2.0), (TORCH, 2.5))
ROWS = (
    Row("gpt2", "GPT-2 124M, greedy", "gpt2", DECODER, (Cell(32, 128),), _OVER),
    Row("gpt2-beams", "GPT-2 124M, 5 beams", "gpt2", DECODER, (Cell(32, 128, 5),), ((OPTIMUM, 2.5), (TORCH, 0.0))),
    Row("gpt2-memory", "GPT-2 124M at 1,024 positions", "gpt2", DECODER, (Cell(1000, 24),), memory=1.15),
    Row("t5-small", "T5-small", "t5-small", TEXT, _lengths(64), ((TORCH, 1.3),)),
    Row("m2m100", "M2M100-418M", "m2m100", TEXT, _lengths(32), ((TORCH, 1.3),)),
    Row("llama-int4", "A Llama of 0.5B in int4", "llama-int4", DECODER, (Cell(512, 128),), ((GENAI, 1.5),), first=1.15),
    Row("whisper-small", "Whisper-small, 30 s of sound", "whisper-small", SOUND, (Cell(0, 100),), ((OPTIMUM, 1.8),)),
)
SENTENCES = "minilm"
NAMES = (*(row.name for row in ROWS), SENTENCES)


def shrunk(row: Row) -> Row:
    """The row of the tiny model, in which little is generated."""
    cells = tuple(Cell(min(cell.prompt, 12), 6, cell.beams) for cell in row.cells)
    return replace(row, cells=tuple(dict.fromkeys(cells)))

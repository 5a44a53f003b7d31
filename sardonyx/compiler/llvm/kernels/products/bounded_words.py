"""Weights of bytes as words whose products by unsigned bytes never exceed 16 bits, for machines that add them so.

One instruction multiplies unsigned bytes by signed ones and adds the products two by two; where a sum needs more than
16 bits, it saturates. It is exact if the positive weights of each pair add up to 128 at most, and the negative ones to
-128 at least: 255 * 128 fits. A word of B meets four bytes of A from any place on, so that pairs need not begin at even
places, and words may overlap:

    the pair of this byte and the next one is too large    the word begins one byte before, with a weight of 0 there
    the word's second pair is too large                    what is too much of its last weight goes to the next word,
                                                           which begins with that byte

So every word says where it begins, and weights of models take some hundredths more words than there are.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I8, I32, I64, PTR
from sardonyx.light_dataclass import dataclass

# Weights of one sign in a pair add up to this at most: 255 times as much fits in 16 bits.
MOST = 128
DEPTH = 4


@dataclass(frozen=True)
class BoundedWordsSpec:
    """The kernel has no variants."""

    ARGUMENTS = ("weights", "words", "begins", "ends", "runs", "run", "room")


def emit_bounded_words(target: Target, spec: BoundedWordsSpec) -> str:
    """A chunk is a panel of as many columns as a vector of int32 has lanes.

    weights       signed bytes, [panels][runs * run][lanes] and one more line; they are used up
    words         [panels][room][lanes] words of four weights each
    begins        int32 [panels][room], the byte of its run that the first weight of each word is for
    ends          int64 [panels][runs], how many words a panel has up to the end of each run; more than `room` where it
                  would have more
    runs, run     runs along K whose bytes lie together in A; bytes of a run, a multiple of four
    """
    k = Function("kernel", target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    arguments = k.pointer("arguments", I64)
    given = {name: arguments.load(index) for index, name in enumerate(spec.ARGUMENTS)}
    weights, words = k.pointer(given["weights"], I8), k.pointer(given["words"], I32)
    begins, ends = k.pointer(given["begins"], I32), k.pointer(given["ends"], I64)
    lanes, run, room = target.lanes(I32), given["run"], given["room"]
    with k.loop(k["begin"], k["end"]) as panel:
        count = k.variable(I64, 0)
        with k.loop(0, given["runs"]) as number:
            line = weights.offset((panel * given["runs"] + number) * run * lanes)
            place = k.variable(I64, 0)
            with k.loop_while(lambda: (place.get() < run) & (count.get() < room)):
                at, step = place.get(), panel * room + count.get()
                pair = [line.offset((at + byte) * lanes).load(0, lanes).to(I32) for byte in range(2)]
                too_large = _exceeds(k, *pair) & (at > 0)
                before = k.larger(at - (run - DEPTH), k.select(too_large, k.constant(I64, 1), 0))
                first = at - before
                here = line.offset(first * lanes)
                a, b, c, d = (here.offset(byte * lanes).load(0, lanes).to(I32) for byte in range(DEPTH))
                b_rest, d_rest = b - _limited(k, a, b), d - _limited(k, c, d)
                cut, over = _any(k, b_rest), _any(k, d_rest)
                low = _byte(a, 0) | _byte(b - b_rest, 1)
                high = _byte(c, 2) | _byte(d - d_rest, 3)
                words.offset(step * lanes).store(low | k.select(cut, k.constant(high.type, 0), high))
                begins.store(first.to(I32), step)
                # What is left of the four: nothing of the bytes that a later word need not meet.
                rest = (k.constant(a.type, 0), b_rest, k.select(cut, c, 0), k.select(cut, d, d_rest))
                for byte, left in enumerate(rest):
                    here.offset(byte * lanes).store(left.to(I8))
                place.set(first + k.select(cut, k.constant(I64, 1), k.select(over, k.constant(I64, 3), 4)))
                count.set(count.get() + 1)
            with k.when(place.get() < run):
                count.set(room + 1)
            ends.store(count.get(), panel * given["runs"] + number)
    return k.finish()


def _limited(k: Function, beside: Value, weights: Value) -> Value:
    """As much of the weights as pairs with those beside them may have."""
    most = MOST - k.larger(beside, 0)
    least = -MOST - k.smaller(beside, 0)
    return k.larger(k.smaller(weights, most), least)


def _exceeds(k: Function, beside: Value, weights: Value) -> Value:
    return _any(k, weights - _limited(k, beside, weights))


def _any(k: Function, numbers: Value) -> Value:
    return k.any_lane(numbers.differs(0))


def _byte(numbers: Value, place: int) -> Value:
    """The lowest byte of each number at a place of its word."""
    return (numbers & 0xFF) << (8 * place)

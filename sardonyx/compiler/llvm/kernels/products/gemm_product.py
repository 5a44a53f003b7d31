"""Inner products: what one multiply-accumulate instruction takes, and how to emit it.

A *word* is what one lane of it reads along K: one float, a pair of bfloat16, four bytes. Panels of B hold the words
of `panel` columns for one step of K after the other; A is read one word at a time and spread over the lanes.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, BRAIN, F16, F32, F64, I8, I16, I32, U8, U16, Type
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Product:
    """`depth` elements of K make a word; `stored` are the types of A and B in tensors, `packed` in words.

    "f16" and "bfloat16" are matrices of these types computed in float32; "bf16" rounds float32 matrices to bfloat16.
    "u8s8" multiplies unsigned by signed bytes; of "s8s8" the left ones are signed, and 128 is added to them. Those
    "in tiles" are for AMX: "f32 tiles" keeps all bits of float32 in three `parts` of bfloat16, whose words come one
    unit after the other. Those by "pairs" are for machines without dot products of bytes, see `by_pairs`;
    so are "bounded" ones, for constant B: their words of B are `bounded_words`, each of which says which bytes of A it
    meets, and whose products are added in 16 bits. "s16" multiplies pairs of 16 bits.
    """

    name: str
    depth: int
    word: Type
    accumulator: Type
    stored_a: Type
    stored_b: Type
    packed_a: Type
    packed_b: Type
    unit: int = 1  # words along K come in multiples of so many, padded with zeros
    in_tiles: bool = False  # multiplied by AMX, tile by tile
    parts: int = 1  # words that hold an element between them
    left_words: int = 1  # words of A that meet one word of B
    is_bounded: bool = False

    def words(self, elements: int) -> int:
        """How many words hold so many elements along K."""
        whole = self.depth * self.unit
        return -(-elements // whole) * self.unit * self.parts

    def elements(self, words: int) -> int:
        """How many elements so many words hold."""
        return words // self.parts * self.depth

    def words_before(self, element: Value) -> Value:
        """The words before this element along K, a multiple of those that come together."""
        words = element if self.depth == 1 else element // self.depth
        return words if self.parts == 1 else words * self.parts

    def place(self, element: Value) -> Value:
        """Where the word of this element, a multiple of the depth, lies along K: the first of its parts; each of the
        others is `unit` words further on."""
        if self.parts == 1:
            return self.words_before(element)
        whole = self.depth * self.unit
        return element // whole * (self.unit * self.parts) + element % whole // self.depth

    @property
    def by_pairs(self) -> bool:
        """Whether bytes are multiplied as pairs of 16 bits: a word of A is such a pair, and those of a vector of B hold
        the first pair of bytes of every column, then the second one of each (`arranged`)."""
        return self.left_words > 1

    @property
    def copies_a(self) -> bool:
        """Whether rows of A must be copied before they can be read as words."""
        return self.stored_a != self.packed_a or self.depth > 1

    @property
    def copies_b(self) -> bool:
        return self.stored_b != self.packed_b or self.depth > 1

    def padded(self, elements: Value) -> Value:
        """A number of elements along K rounded up to whole words, as many as come together."""
        whole = self.depth * self.unit
        return elements if whole == 1 else (elements + (whole - 1)) // whole * whole

    def arranged(self, k: Function, words: Value) -> Value:
        """A vector of words of B, four bytes of a column each, as panels hold it."""
        if not self.by_pairs:
            return words
        lanes = words.type.lanes
        order = [lane * 2 + half for half in range(2) for lane in range(lanes)]
        return k.shuffle(words.bits_as(I16), None, order).bits_as(self.word)

    def load_b(self, line: Pointer, first: int, lanes: int, part: int, mask: Value | None = None) -> Value:
        """What words `first` to `first + lanes` of a line of a panel, or the first ones of a vector, are multiplied as
        with word number `part` of A: of products by pairs the pairs of this number."""
        if not self.by_pairs:
            return line.load(first, lanes, mask)
        whole = line.function.target.lanes(self.word)
        half = line.offset(first).cast(I8).load(part * whole * 2, lanes * 2)
        return half.to(I16).bits_as(self.word)

    def ones(self, k: Function) -> Value | None:
        """What `multiply` takes to add sums of 16 bits, made before a loop so that it stays in a register; or None."""
        if not self.is_bounded:
            return None
        lanes = 2 * k.target.lanes(self.accumulator)
        one = k.constant(I16.vector(lanes), 1)
        return k.emit(one.type, f'call {one.type} asm "", "=x,0"({one.type} {one.name})')

    def multiply(self, k: Function, a: Value, b: Value, accumulator: Value, ones: Value | None = None) -> Value:
        """accumulator + a * b, lane by lane; `a` is one word, `b` a vector of what `load_b` gives, and `ones` are those
        of the product."""
        lanes = accumulator.type.lanes
        if self.depth == 1:
            return k.fma(k.splat(a, lanes), b, accumulator)
        wide = k.splat(a, lanes)
        if self.by_pairs:
            return accumulator + _sum_of_pairs(k, wide.bits_as(I16), b.bits_as(I16), lanes)
        if self.is_bounded:
            return accumulator + widened_sums(k, sums_of_pairs(k, wide, b), ones)
        bits = lanes * 32
        if self.name == "bf16":
            left, right = wide.bits_as(BRAIN), b.bits_as(BRAIN)
            return k.call(f"llvm.x86.avx512bf16.dpbf16ps.{bits}", accumulator.type, accumulator, left, right)
        if self.packed_b == I16:
            return multiply_pairs(k, wide, b, accumulator)
        return multiply_bytes(k, wide, b, accumulator)


def multiply_bytes(k: Function, unsigned: Value, signed: Value, accumulator: Value) -> Value:
    """accumulator + the four products of an unsigned and a signed byte in each lane of 32 bits."""
    if k.target.has_vnni:
        left, right = unsigned.bits_as(I8), signed.bits_as(I8)
        bits = accumulator.type.lanes * 32
        return k.call(f"llvm.x86.avx512.vpdpbusd.{bits}", accumulator.type, accumulator, left, right)
    return _bytes_by_pairs(k, unsigned, signed, accumulator)


def multiply_pairs(k: Function, a: Value, b: Value, accumulator: Value) -> Value:
    """accumulator + the two products of signed 16 bits in each lane of 32 bits, modulo 2^32."""
    if k.target.has_vnni:
        bits = accumulator.type.lanes * 32
        left, right = a.bits_as(I16), b.bits_as(I16)
        return k.call(f"llvm.x86.avx512.vpdpwssd.{bits}", accumulator.type, accumulator, left, right)
    return accumulator + _sum_of_pairs(k, a.bits_as(I16), b.bits_as(I16), accumulator.type.lanes)


def _bytes_by_pairs(k: Function, a: Value, b: Value, accumulator: Value) -> Value:
    """Four products of an unsigned and a signed byte in every lane, where there is no instruction for all of them.

    Even and odd bytes are widened to pairs of 16 bits, whose products are exact and added in pairs.
    """
    left, right = a.bits_as(U16), b.bits_as(I16)
    pairs = [(left & 0xFF, (right << 8) >> 8), (left >> 8, right >> 8)]
    for one, other in pairs:
        accumulator = accumulator + _sum_of_pairs(k, one.bits_as(I16), other, accumulator.type.lanes)
    return accumulator


_PAIRS_X86 = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


def _sum_of_pairs(k: Function, a: Value, b: Value, lanes: int) -> Value:
    """Products of 16 bits, added two by two."""
    if k.target.architecture == "x86_64":
        return k.call(f"llvm.x86.{_PAIRS_X86[lanes]}", I32.vector(lanes), a, b)
    even, odd = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
    wide = [(k.shuffle(a, None, part).to(I32), k.shuffle(b, None, part).to(I32)) for part in (even, odd)]
    return wide[0][0] * wide[0][1] + wide[1][0] * wide[1][1]


_SUMS_X86 = {8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}


def has_sums_of_pairs(target: Target) -> bool:
    """Whether `sums_of_pairs` is an instruction of the machine's, and no other one adds four products."""
    return target.architecture == "x86_64" and target.vector_bits // 32 in _SUMS_X86 and not target.has_vnni


def sums_of_pairs(k: Function, unsigned: Value, signed: Value) -> Value:
    """Products of unsigned and signed bytes, added two by two in 16 bits, where they must fit: more would saturate."""
    lanes = unsigned.type.lanes
    left, right = unsigned.bits_as(I8), signed.bits_as(I8)
    return k.call(f"llvm.x86.{_SUMS_X86[lanes]}", I16.vector(2 * lanes), left, right)


def widened_sums(k: Function, sums: Value, ones: Value | None = None) -> Value:
    """Sums of 16 bits, added two by two in 32."""
    return _sum_of_pairs(k, sums, ones or k.constant(sums.type, 1), sums.type.lanes // 2)


def takes_bounded(target: Target) -> bool:
    """Whether a machine multiplies bytes by constant ones soonest in bounded words: where vectors of 256 bits are the
    widest, and no instruction adds four products."""
    return has_sums_of_pairs(target) and target.vector_bits == _BOUNDED_BITS


_BOUNDED_BITS = 256


def bounded(product: str) -> str:
    """The product in bounded words that multiplies what this one by pairs does."""
    return f"{product.split()[0]} bounded"


def byte_product(target: Target, *, is_signed: bool = False) -> str:
    """The inner product by which a machine multiplies bytes by signed bytes; the left ones may be signed, too."""
    name = "s8s8" if is_signed else "u8s8"
    if target.has_amx:
        return f"{name} tiles"
    return f"{name} pairs" if target.architecture == "x86_64" and not target.has_vnni else name


PRODUCTS: dict[str, Product] = {
    product.name: product
    for product in (
        Product("f32", 1, F32, F32, F32, F32, F32, F32),
        Product("f64", 1, F64, F64, F64, F64, F64, F64),
        Product("f16", 1, F32, F32, F16, F16, F32, F32),
        Product("bfloat16", 1, F32, F32, BF16, BF16, F32, F32),
        Product("bf16", 2, I32, F32, F32, F32, BF16, BF16),
        Product("bf16 tiles", 2, I32, F32, F32, F32, BF16, BF16, 16, True),
        Product("f32 tiles", 2, I32, F32, F32, F32, BF16, BF16, 16, True, 3),
        Product("u8s8 tiles", 4, I32, I32, U8, I8, U8, I8, 16, True),
        Product("s8s8 tiles", 4, I32, I32, I8, I8, U8, I8, 16, True),
        Product("u8s8", 4, I32, I32, U8, I8, U8, I8),
        Product("s8s8", 4, I32, I32, I8, I8, U8, I8),
        Product("u8s8 pairs", 4, I32, I32, U8, I8, I16, I8, left_words=2),
        Product("s8s8 pairs", 4, I32, I32, I8, I8, I16, I8, left_words=2),
        Product("s16", 2, I32, I32, I16, I16, I16, I16),
        Product("u8s8 bounded", 4, I32, I32, U8, I8, U8, I8, is_bounded=True),
        Product("s8s8 bounded", 4, I32, I32, I8, I8, U8, I8, is_bounded=True),
    )
}

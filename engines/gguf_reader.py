"""Reads the pieces a GGUF header is made of, from a file that nobody vouches for.

:class:`GgufReader` is a cursor over the file with a small window of bytes in memory. Every count and length is held against
the bytes that are left before anything is read or allocated, so a hostile file costs no more than its own size. Plain reads
instead of a mapping: a file that is cut short while it is being read is then an error, not a SIGBUS.

:class:`GgufArray` is a metadata array that stays in the file until somebody looks into it.

Source of the format: the GGUF specification (docs/gguf.md of ggml), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, TypeVar, Union, cast, overload

from engines.checkpoint_file import FileIdentity, open_regular, short
from engines.errors import GgufFormatError
from engines.gguf_value_types import FORMATS, LEAST_SIZES, SIZES, GgufValueType

__all__ = ["GgufArray", "GgufReader", "MetadataValue"]

WINDOW_BYTES: Final = 1 << 20
MAX_NAME_BYTES: Final = 65535  # the specification's limit for keys
MAX_STRING_BYTES: Final = 1 << 28  # a scalar: chat templates and embedded tokenizer files are far smaller
MAX_NESTING: Final = 4  # arrays of arrays; no known writer goes beyond one
# In the arrays of a header. They are walked one by one, and more of them than any model has would take many seconds.
MAX_STRINGS: Final = 1 << 22  # the largest vocabularies have 2**18 tokens and twice as many merges
MAX_ARRAYS: Final = 1 << 16  # an array takes longer than a string

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


_T = TypeVar("_T", str, int, float)
Scalar = str | int | float | bool
Element = Union[Scalar, "list[Element]"]
MetadataValue = Union[Scalar, "GgufArray"]


class GgufReader:
    """A cursor over one file. ``position`` is the byte that will be read next."""

    def __init__(self, file: BinaryIO, identity: FileIdentity, position: int = 0, window: int = WINDOW_BYTES) -> None:
        self._file = file
        self.identity = identity
        self._window = window
        self._buffer = b""
        self._base = position  # file offset of buffer[0]
        self._at = 0  # cursor within the buffer
        self._strings_seen = 0  # in arrays so far, over the whole header
        self._arrays_seen = 0  # the same of arrays in arrays

    @property
    def position(self) -> int:
        return self._base + self._at

    @property
    def left(self) -> int:
        """Bytes from the cursor to the end of the file."""
        return self.identity.size - self.position

    def error(self, what: str, offset: int | None = None) -> GgufFormatError:
        """The error for something wrong at ``offset`` (default: at the cursor)."""
        return GgufFormatError(self.identity.path, what, self.position if offset is None else offset)

    def take(self, count: int, what: str) -> bytes:
        """The next ``count`` bytes. GgufFormatError when the file ends first."""
        start = self._ensure(count, what)
        self._at = start + count
        return self._buffer[start : self._at]

    def u32(self, what: str) -> int:
        start = self._ensure(4, what)
        self._at = start + 4
        value: int = _U32.unpack_from(self._buffer, start)[0]
        return value

    def u64(self, what: str) -> int:
        start = self._ensure(8, what)
        self._at = start + 8
        value: int = _U64.unpack_from(self._buffer, start)[0]
        return value

    def u64s(self, count: int, what: str) -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", self.take(8 * count, what))

    def name(self, what: str) -> str:
        """A key or a tensor name: not empty, at most 65535 bytes."""
        start = self.position
        text = self.string(what, MAX_NAME_BYTES)
        if not text:
            raise self.error(f"{what} is empty", start)
        return text

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        """A length and that many bytes of UTF-8."""
        start = self.position
        length = self.u64(f"the length of {what}")
        if length > self.left:
            raise self.error(f"{what} is said to take {length} bytes, but the file has {self.left} left", start)
        if length > limit:
            raise self.error(f"{what} takes {length} bytes; at most {limit} are allowed", start)
        return self._decode(self.take(length, what), what, start + 8)

    def value(self, key: str) -> MetadataValue:
        """The typed value of a metadata pair. Scalars are decoded, arrays are checked for length and left where they are."""
        kind = self._value_type(f"the type of {short(key)}")
        if kind is GgufValueType.ARRAY:
            return self._array(key)
        return self._scalar(kind, key)

    def elements(self, kind: GgufValueType, count: int, key: str, depth: int = 1) -> list[Element]:
        """``count`` decoded elements of type ``kind``, from the cursor on."""
        if kind is GgufValueType.STRING:
            return list(self._strings(count, key))
        if kind is GgufValueType.ARRAY:
            return [self._nested(key, depth) for _ in range(count)]
        start = self.position
        raw = self.take(count * SIZES[kind], f"the array {short(key)}")
        if kind is GgufValueType.BOOL:
            wrong = next((i for i, byte in enumerate(raw) if byte > 1), None)
            if wrong is not None:
                raise self.error(f"element {wrong} of {short(key)} is {raw[wrong]}, not a bool", start + wrong)
            return [bool(byte) for byte in raw]
        return list(struct.unpack(f"<{count}{FORMATS[kind]}", raw))

    def encoded_strings(self, count: int, length: int, key: str) -> list[bytes]:
        """``count`` strings that take ``length`` bytes with their lengths, as they are: checked to be UTF-8, not decoded."""
        start = self.position
        raw = self.take(length, f"the array {short(key)}")
        unpack = _U64.unpack_from
        texts: list[bytes] = []
        at = 0
        try:
            for _ in range(count):
                begin = at + 8
                at = begin + unpack(raw, at)[0]
                texts.append(raw[begin:at])
            b"".join(texts).decode()
        except (struct.error, UnicodeDecodeError):
            sound = False
        else:  # a code point is cut in two where a string begins with its continuation
            sound = at == length and not any(text and 0x80 <= text[0] < 0xC0 for text in texts)
        if sound:
            return texts
        self._base, self._at, self._buffer = start, 0, b""
        return [text.encode() for text in self._strings(count, key)]  # slower, and raises what is wrong

    # --- scalars ----------------------------------------------------------------------------------------------------

    def _scalar(self, kind: GgufValueType, key: str) -> Scalar:
        what = f"the value of {short(key)}"
        if kind is GgufValueType.STRING:
            return self.string(what)
        start = self.position
        value: int | float = struct.unpack("<" + FORMATS[kind], self.take(SIZES[kind], what))[0]
        if kind is not GgufValueType.BOOL:
            return value
        if value > 1:
            raise self.error(f"{what} is {value}, not a bool (0 or 1)", start)
        return bool(value)

    def _value_type(self, what: str) -> GgufValueType:
        start = self.position
        number = self.u32(what)
        try:
            return GgufValueType(number)
        except ValueError:
            raise self.error(f"{what} is {number}, which is no value type", start) from None

    def _decode(self, raw: bytes, what: str, start: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8", start + error.start) from None

    # --- arrays -----------------------------------------------------------------------------------------------------

    def _array(self, key: str) -> GgufArray:
        kind, count = self._array_head(key)
        start = self.position
        self._skip(kind, count, key, depth=1)
        return GgufArray(self.identity, key, kind, count, start, self.position)

    def _array_head(self, key: str) -> tuple[GgufValueType, int]:
        """Element type and count, the count held against the bytes left, MAX_STRINGS and MAX_ARRAYS."""
        kind = self._value_type(f"the element type of {short(key)}")
        start = self.position
        count = self.u64(f"the length of {short(key)}")
        if count * LEAST_SIZES[kind] > self.left:
            raise self.error(
                f"{short(key)} is said to have {count} elements, but the file has {self.left} bytes left", start
            )
        if kind is GgufValueType.ARRAY:
            self._arrays_seen += count
            if self._arrays_seen > MAX_ARRAYS:
                raise self.error(
                    f"{short(key)} brings the header to {self._arrays_seen} nested arrays; {MAX_ARRAYS} are allowed",
                    start,
                )
        elif kind is GgufValueType.STRING:
            self._strings_seen += count
            if self._strings_seen > MAX_STRINGS:
                raise self.error(
                    f"{short(key)} brings the header to {self._strings_seen} strings; {MAX_STRINGS} are allowed", start
                )
        return kind, count

    def _skip(self, kind: GgufValueType, count: int, key: str, depth: int) -> None:
        """Moves the cursor past ``count`` elements, looking at lengths only."""
        if kind is GgufValueType.STRING:
            self._skip_strings(count, key)
        elif kind is GgufValueType.ARRAY:
            for _ in range(count):
                self._skip(*self._nested_head(key, depth), key, depth + 1)
        else:
            self._move(count * SIZES[kind])

    def _skip_strings(self, count: int, key: str) -> None:
        # The one hot loop of opening a file: 262144 lengths for Gemma's vocabulary.
        unpack = _U64.unpack_from
        done = 0
        while done < count:
            at = self._ensure(8, f"the length of string {done} of {short(key)}")
            buffer = self._buffer
            last = len(buffer) - 8
            previous = at
            for _ in range(count - done):
                if at > last:
                    break
                previous = at
                at += 8 + unpack(buffer, at)[0]
                done += 1
            if self._base + at > self.identity.size:
                raise self.error(
                    f"string {done - 1} of {short(key)} goes past the end of the file", self._base + previous
                )
            self._move(at - self._at)

    def _strings(self, count: int, key: str) -> Iterator[str]:
        unpack = _U64.unpack_from
        done = 0
        while done < count:
            self._ensure(8, key)
            buffer, at = self._buffer, self._at
            last = len(buffer) - 8
            for _ in range(count - done):
                if at > last:
                    break
                begin = at + 8
                end = begin + unpack(buffer, at)[0]
                if end > last + 8:
                    break
                try:
                    yield str(buffer[begin:end], "utf-8")
                except UnicodeDecodeError as error:
                    where = self._base + begin + error.start
                    raise self.error(f"string {done} of {short(key)} is not UTF-8", where) from None
                at = end
                done += 1
            self._at = at
            if done < count:  # this one straddles the window, or is larger than it
                yield self.string(f"string {done} of {short(key)}")
                done += 1

    def _nested(self, key: str, depth: int) -> list[Element]:
        return self.elements(*self._nested_head(key, depth), key, depth + 1)

    def _nested_head(self, key: str, depth: int) -> tuple[GgufValueType, int]:
        if depth == MAX_NESTING:
            raise self.error(f"arrays in {short(key)} are nested deeper than {MAX_NESTING}")
        return self._array_head(key)

    # --- the window -------------------------------------------------------------------------------------------------

    def _move(self, count: int) -> None:
        """Moves the cursor; bytes not in the window are not read."""
        self._at += count
        if self._at > len(self._buffer):
            self._base += self._at
            self._buffer, self._at = b"", 0

    def _ensure(self, count: int, what: str) -> int:
        """Brings ``count`` bytes from the cursor on into the window; the cursor's place in it."""
        if self._at + count <= len(self._buffer):
            return self._at
        if count > self.left:
            raise self.error(f"the file ends within {what}")
        self._base, self._at = self.position, 0
        self._file.seek(self._base)
        wanted = max(count, min(self._window, self.left))
        buffer = self._file.read(wanted)
        while len(buffer) < count:
            more = self._file.read(wanted - len(buffer))
            if not more:
                raise self.error(f"the file was cut short while {what} was being read")
            buffer += more
        self._buffer = buffer
        return 0


class GgufArray(Sequence[Element]):
    """A metadata array, read from the file when it is looked into.

    ``tolist()`` reads and decodes all of it (a quarter of a million strings in about a tenth of a second) and keeps nothing.
    Indexing and iterating read the array once and keep the decoded elements. Strings that are not UTF-8 and bools that are
    neither 0 nor 1 are a GgufFormatError then; so is a file that has changed since its header was read.
    """

    __slots__ = ("_count", "_end", "_identity", "_kept", "_start", "element_type", "key")

    def __init__(
        self, identity: FileIdentity, key: str, element_type: GgufValueType, count: int, start: int, end: int
    ) -> None:
        self.key = key
        self.element_type = element_type
        self._identity = identity
        self._count = count
        self._start = start  # file offset of the first element
        self._end = end  # file offset behind the last
        self._kept: list[Element] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes the elements take in the file."""
        return self._end - self._start

    def tolist(self) -> list[Element]:
        """All elements, decoded; a new list each time."""
        if self._kept is not None:
            return list(self._kept)
        file, reader = self._open()
        with file:
            return reader.elements(self.element_type, self._count, self.key)

    def encoded(self) -> list[bytes]:
        """The elements of an array of strings in UTF-8; GgufFormatError when it is of another type."""
        if self.element_type is not GgufValueType.STRING:
            raise self._mistyped("str")
        file, reader = self._open()
        with file:
            return reader.encoded_strings(self._count, self.nbytes, self.key)

    def strings(self) -> list[str]:
        """:meth:`tolist` of an array of strings; GgufFormatError when it is of another type."""
        return self._typed(str)

    def integers(self) -> list[int]:
        """:meth:`tolist` of an array of integers (bools are 0 and 1); GgufFormatError when it is of another type."""
        return self._typed(int)

    def floats(self) -> list[float]:
        """:meth:`tolist` of an array of floats; GgufFormatError when it is of another type."""
        return self._typed(float)

    @overload
    def __getitem__(self, index: int) -> Element: ...
    @overload
    def __getitem__(self, index: slice) -> list[Element]: ...
    def __getitem__(self, index: int | slice) -> Element | list[Element]:
        return self._elements()[index]

    def __iter__(self) -> Iterator[Element]:
        return iter(self._elements())

    def __repr__(self) -> str:
        return f"GgufArray({short(self.key)}, {self.element_type.name}, {self._count} elements)"

    def _open(self) -> tuple[BinaryIO, GgufReader]:
        """The file, to be closed by the caller, and a reader at the first element."""
        file, identity = open_regular(self._identity.path)
        if identity != self._identity:
            file.close()
            raise GgufFormatError(identity.path, "has changed since its header was read")
        # The window is the array itself, up to a size at which reading in pieces costs nothing any more.
        return file, GgufReader(file, identity, self._start, max(1, min(self.nbytes, WINDOW_BYTES)))

    def _typed(self, wanted: type[_T]) -> list[_T]:
        elements = self.tolist()
        if elements and not isinstance(elements[0], wanted):
            raise self._mistyped(wanted.__name__)
        return cast("list[_T]", elements)  # all elements of an array have one type

    def _mistyped(self, wanted: str) -> GgufFormatError:
        return GgufFormatError(
            self._identity.path, f"{short(self.key)} is an array of {self.element_type.name}, not of {wanted}"
        )

    def _elements(self) -> list[Element]:
        if self._kept is None:
            self._kept = self.tolist()
        return self._kept

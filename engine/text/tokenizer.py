"""Text to token ids and back, on the ``tokenizers`` library."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from engine.errors import CoreError, RequestError
from engine.text.detokenizer import IncrementalDetokenizer, unfinished_tail
from engine.text.info import INFO_FILE, TOKENIZER_FILE, TextInfo, parse_info, text_file
from engine.text.pieces import PieceTable


class Tokenizer:
    """The tokenizer of a core. Safe to use from several threads.

    Encoding holds no interpreter lock, so a long text can be encoded in a worker thread while the
    event loop runs on.
    """

    def __init__(self, backend: Backend, info: TextInfo) -> None:
        self._backend = backend
        self._info = info
        added = backend.get_added_tokens_decoder()
        self._added = [added[token_id] for token_id in sorted(added)]
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        contents = {i: token.content for i, token in added.items()}
        self._pieces = PieceTable(backend.id_to_token, contents, info.pieces)

    @classmethod
    def load(cls, files: Mapping[str, bytes]) -> "Tokenizer":
        """Load from a core's text files. Raises CoreError naming the file that is at fault."""
        info = parse_info(text_file(files, INFO_FILE))
        return cls(parse_backend(text_file(files, TOKENIZER_FILE)), info)

    @property
    def info(self) -> TextInfo:
        """What ``text.json`` says."""
        return self._info

    @property
    def vocab_size(self) -> int:
        """Ids below it may be sampled; ids beyond decode to nothing."""
        return self._info.vocab_size

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of ``text``.

        add_special: if the model wants a begin token, the ids begin with exactly one (none is added
        when the text already spells it). parse_special: text like ``<|im_end|>`` becomes the added
        token; False encodes it as ordinary pieces, control and user-defined tokens alike (only
        added tokens of nothing but white space stay: they are plain text).
        Raises RequestError for text that is not valid Unicode (unpaired surrogates).
        """
        backend = self._backend if parse_special else self._literal
        try:
            # The batch call is the one that releases the interpreter lock.
            ids = list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(
                "the text has an unpaired surrogate, which is not Unicode"
            ) from error
        bos = self._info.bos_id
        if add_special and self._info.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, token_ids: Iterable[int], skip_special: bool = True) -> str:
        """Return the text of a whole sequence; broken UTF-8 becomes U+FFFD."""
        detokenizer = self.detokenizer(skip_special=skip_special)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def detokenizer(
        self,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special: bool = True,
        shown: Collection[str] = (),
    ) -> IncrementalDetokenizer:
        """Return the streaming decoder of one sequence.

        Its text is that of ``prompt_ids`` plus what is pushed, less that of ``prompt_ids``: a
        continuation keeps its first space, and a character that the prompt began is completed.
        Leave ``prompt_ids`` empty when the output stands alone (a chat answer, or echo, where the
        prompt is pushed too). shown: special tokens that are text all the same.
        """
        hidden = self.special_ids if skip_special else frozenset()
        if shown:
            hidden = frozenset(i for i in hidden if self.token_text(i) not in shown)
        continues = any(self._pieces[i] for i in prompt_ids if i not in hidden)
        return IncrementalDetokenizer(
            self._pieces,
            hidden,
            strip_space=self._info.pieces.strip_space and not continues,
            pending=unfinished_tail(self._pieces, prompt_ids, hidden) if continues else b"",
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token adds to a text (empty for ids outside the vocabulary)."""
        return self._pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """Return one token as text.

        A token that is not UTF-8 on its own is written ``bytes:\\xe2\\x82``, as OpenAI's legacy
        completions do, so that different tokens never look the same.
        """
        data = self._pieces[token_id]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    @cached_property
    def _literal(self) -> Backend:
        """The same model, with every added token but white space taken as ordinary text."""
        backend = Backend(self._backend.model)
        if self._backend.normalizer is not None:
            backend.normalizer = self._backend.normalizer
        if self._backend.pre_tokenizer is not None:
            backend.pre_tokenizer = self._backend.pre_tokenizer
        backend.add_tokens([_marked_special(token) for token in self._added])
        backend.encode_special_tokens = True
        return backend


def parse_backend(data: bytes) -> Backend:
    """Read ``tokenizer.json``. Raises CoreError if the library does not take it."""
    try:
        return Backend.from_buffer(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises Exception, and a panic is not even that
        raise CoreError(
            f"{TOKENIZER_FILE} is damaged: {str(error)[:200]}", "Export the core again."
        ) from error


def _marked_special(token: AddedToken) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special or not token.content.isspace(),
    )

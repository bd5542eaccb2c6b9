"""
Look-ups, drafts, learning, and the steps of the wire, in C++. Calls work without the GIL, and raise
the errors of ``speculant_graph.errors``: a caller's mistake is a DraftRequestError.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, overload

import numpy
import numpy.typing
from numpy.typing import NDArray

import speculant_graph.types


class Trie:
    """The look-ups of a graph, whose arrays are viewed and never copied."""

    def __init__(self, words: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], table: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], model_words: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        View a block of words, and those of a neural model; the table is that of ``graph/layout.py``. ValueError
        if it refers to words outside, or the model is invalid.
        """

    def match(self, token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[int, int]:
        """
        Return (order, record) of the longest suffix with successors; (0, 0) if there is none.
        """

    def find_ngram(self, token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
        """Return the record of an n-gram of 1 to N+1 tokens on its level, or -1."""

    def children(self, order: int, node: int) -> tuple[int, int]:
        """
        Return a context's successors as a range of records of level ``order + 1``.
        """

    def read(self, length: int, low: int, high: int) -> tuple[Annotated[NDArray[numpy.uint32], dict(shape=(None,))], Annotated[NDArray[numpy.uint32], dict(shape=(None,))]]:
        """
        Return the last tokens and the counts of a range of n-grams of one length.
        """

    def spell(self, length: int, low: int, high: int) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,))]:
        """
        Return a range of n-grams of one length, concatenated: ``length`` tokens each.
        """

    def count_known(self, token_ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[list[int]]:
        """Return how much of a text is known, five numbers for each order."""

ROW_WIDTH: int = 4

ROW_DEPTH: int = 4

MAX_GRAPHS: int = 4

def methods() -> list[str]:
    """Names of the methods of drafting."""

class Calibration:
    """Reliability of each kind of context, learned during drafting."""

    def __init__(self, mixer_weights: numpy.typing.NDArray[numpy.float32] | None = None) -> None:
        """
        Make empty tables. ``mixer_weights``: of the network that mixes the sources, if any. Raises ValueError if they are
        not weights.
        """

    @property
    def records_examples(self) -> bool:
        """Whether learned positions are kept, for :func:`train_mixer`."""

    @records_examples.setter
    def records_examples(self, arg: bool, /) -> None: ...

    @property
    def weights(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None, None))]:
        """
        A copy of (visits, passed on) of every kind of context, shape ``[kinds, 2]``.
        """

    @property
    def bins(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None, None))]:
        """
        A copy of (visits, sum of probabilities, hits) of every bin, shape ``[ranges * supports, 3]``.
        """

    @property
    def paths(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None, None))]:
        """
        A copy of the same of drafted paths, by depth and range of estimates, shape ``[depths * ranges, 3]``.
        """

    def restore(self, weights: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], bins: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """Load tables of these shapes. ValueError if the shapes differ."""

    def copy(self) -> Calibration:
        """Return an independent copy."""

class LearnedMemory:
    """The accepted text of one tenant's sequences."""

    def __init__(self, max_tokens: int) -> None: ...

    def __len__(self) -> int: ...

    def add(self, token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Add a text; no match crosses its ends."""

    def target_rows(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32]]:
        """
        Return the target's rows that its sequences share, for :meth:`restore_target_rows`: slots, their keys, and
        their rows, concatenated.
        """

    def restore_target_rows(self, slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Restore slots from :meth:`target_rows`. IndexError if there is no such slot.
        """

    def take_is_changed(self) -> bool:
        """Return whether rows of the target were added since the last call."""

    def set_graphs(self, graphs: Sequence[Trie]) -> None:
        """
        Take the graphs of older text, the largest first. Sequences that begin from now on draft from them, too.
        """

    @property
    def is_forgotten(self) -> bool:
        """Whether ending sequences no longer add their text."""

    @is_forgotten.setter
    def is_forgotten(self, arg: bool, /) -> None: ...

class DraftSettings:
    """Drafting settings; siblings by their number on the wire."""

    def __init__(self, *, strategy: str, method: str, fills_budget: bool, sources: Sequence[bool], max_depth: int, max_branches: int, max_candidates: int, temperature: float, is_coupled: bool, siblings: int, omits_proposals: bool) -> None:
        """
        ``strategy``: its name in drafts. ``method``: one of :func:`methods`. ``fills_budget``: ignore the least
        probability. ``sources``: session, corpus, skip-gram, learned, target rows, neural.
        """

class Drafter:
    """Drafts from graphs, and from accepted tokens of sequences."""

    def __init__(self, graphs: Sequence[Trie], vocabulary_size: int, calibration: Calibration, max_session_tokens: int, num_threads: int, settings_of: object) -> None:
        """
        Draft from at most MAX_GRAPHS graphs, or from none; ids below ``vocabulary_size`` are tokens.

        ``num_threads``: threads that draft trees for a batch; the number does not change drafts.
        ``settings_of`` returns the settings for a StrategyOptions (bytes).
        """

    @property
    def num_read(self) -> int:
        """
        Records of graphs read in search of most frequent successors, by finished calls.
        """

def is_model(model_words: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], vocabulary_size: int) -> bool:
    """
    Return whether words can be read as a neural model of such a vocabulary.
    """

def propose(model_words: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], others: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[tuple[int, int]]:
    """
    Return what a neural model finds probable after some tokens, of its most frequent tokens and ``others``:
    (token, ten-thousandths of a probability), best first. ValueError if the words are not a model.
    """

def train_neural(token_ids: numpy.typing.NDArray[numpy.uint32], left_out: numpy.typing.NDArray[numpy.int64], vocabulary_size: int, num_positions: int, start: numpy.typing.NDArray[numpy.uint32] | None, goes_on: Callable[[int, int], bool]) -> numpy.typing.NDArray[numpy.uint32]:
    """
    Train a neural model on a text, or one further; return its words. None of them if there is nothing to
    learn from, or if ``goes_on(done, all)``, called now and then, returned False.

    ``left_out``: parts of the text that nothing is learned from, (first, after the last), ascending.
    ``num_positions``: of the text that are learned from, which takes about 10 us each.
    """

NUM_MIXER_WEIGHTS: int = 3529

def train_mixer(calibrations: Sequence[Calibration], seed: int, num_passes: int, rate: float) -> numpy.typing.NDArray[numpy.float32]:
    """
    Train weights of the mixer on the positions that calibrations recorded. Seconds for 100,000 of them; nothing
    may be drafted with these calibrations meanwhile.
    """

def mixer_losses(weights: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], calibration: Calibration) -> list[float]:
    """
    Return what a true token of recorded positions costs on average, in natural units of information: before
    the mixer, and after it. ValueError where the weights are none.
    """

def find_damage(graph: Trie, unigram_index: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> str | None:
    """
    Return the first defect that no build would have written, or None; in time linear in the graph's size.
    """

def count_values(token_ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], prefix: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Count the values that follow a prefix: ``counts[value] += 1``, shape ``[vocabulary_size + 1]``.
    """

def gather_keys(token_ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], prefix: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], low: int, high: int, length: int, bits: int, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')]) -> int:
    """
    Pack the n-grams of all positions whose next values are ``prefix`` and then one of ``low`` to ``high - 1``.
    Return their number; ``keys``, shape ``[at least this number, num_words]``, has them in the order of positions.
    """

def sort_keys(keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')], spare: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')], depth: int, low: int, high: int, length: int, bits: int) -> None:
    """
    Sort keys in place, which share ``depth`` tokens and continue with values from ``low`` to ``high - 1``.
    ``spare`` has their shape and is overwritten.
    """

class Emitter:
    """
    Turns sorted keys, given in any portions, into records. For one thread.
    """

    def __init__(self, length: int, bits: int, capacity: int) -> None:
        """Buffer at most ``capacity`` records of every level."""

    def emit(self, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, row: int) -> int:
        """
        Write the records of keys from ``row`` on until a buffer is full, and return the next row. Keys ascend and
        are not below earlier ones, shape ``[num_keys, num_words]``; without weights each counts once.
        """

    @property
    def records(self) -> list[Annotated[NDArray[numpy.uint32], dict(shape=(None, None))]]:
        """
        The records of every level from the last call, shape ``[n, 4]``; not copies.
        """

    @property
    def num_nodes(self) -> list[int]:
        """Number of records of every level so far."""

    @property
    def totals(self) -> list[int]:
        """Sums of counts of every level so far."""

class KeyReader:
    """
    Walks through a graph and writes the keys of n-grams with own counts. For one thread.
    """

    def __init__(self, graph: Trie, bits: int, min_count: int) -> None:
        """
        Omit n-grams with lower counts; their counts stay with the n-gram that they continue.
        """

    def read(self, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')], weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Write the next keys, ascending, and return their number; 0 when the walk is over.
        """

def merge_keys(first_keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], first_weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], second_keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], second_weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], first: int, second: int, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')], weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> tuple[int, int, int]:
    """
    Merge two ascending lists of distinct keys from rows ``first`` and ``second`` on until one is exhausted.
    Equal keys add their weights. Return how many keys were written, and the next rows of both.
    """

def fill_unigram_index(unigrams: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)], index: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Set ``index[token id]`` to the first record of level 1 with this token or a higher one.
    """

def mark_argmax(level: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu')], next_level: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)], start: int, stop: int) -> int:
    """
    Write the offset of the most frequent child, the first among equals, into records ``start`` to ``stop - 1``.
    Return how many of them have children.
    """

def link_pairs(unigrams: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)], pairs: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu')], index: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], start: int, stop: int) -> None:
    """
    Link the n-grams of two tokens whose first tokens are records ``start`` to ``stop - 1`` of level 1.
    """

def link_children(grandparents: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)], level: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu')], start: int, stop: int) -> None:
    """
    Link the children of parents ``start`` to ``stop - 1``, which are linked themselves.
    """

def gumbel_argmax(scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], noise_key: int) -> tuple[int, float]:
    """
    Return the token with the largest sum of score and noise, and the sum: NaN if a score is NaN or +inf.
    """

def top_p_filter(scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], probabilities: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], most_removed: float, kept: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], float]:
    """
    Copy the scores of tokens that are more probable than the border of the nucleus; others become -inf.
    Return the tokens at the border, which are about equally probable, and the mass of the tokens below it.
    """

@overload
def decode_mxfp4(packed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], exponents: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

@overload
def decode_mxfp4(packed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], exponents: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Decode blocks of 32 numbers of four bits (MXFP4) to float32, or to the bits of bfloat16 as unsigned integers:
    16 bytes and one exponent for each block. All numbers are exact.
    """

def move_slots(memory: Annotated[NDArray[numpy.int16], dict(shape=(None, None, None, None), order='C', device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], source: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    Copy slots of rows of a buffer ``[rows, heads, slots, width]`` to other slots, one after another.
    """

class SessionTable:
    """The open sessions of a server. Times are nanoseconds."""

    def __init__(self, *, max_sessions: int, max_bytes: int, idle_timeout_ns: int, busy_ns: int) -> None:
        """
        Make an empty table with limits of sessions and bytes. Beyond them, the least recently used session is
        dropped, unless it was used within ``busy_ns``.
        """

    def __len__(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """Memory of all sessions in bytes."""

    def open(self, session_id: int, drafter: Drafter, generation: int, tenant: str, memory: LearnedMemory, learns: bool, now_ns: int) -> None:
        """
        Open a session on a generation of a graph; its number must not be in use. OverloadError: there is no
        capacity, and no session is idle.
        """

    def position(self, session_id: int) -> int | None:
        """
        Return the tokens that a session has taken, without using it; None if it is not open.
        """

    def use(self, session_id: int, now_ns: int) -> bool:
        """
        Mark a session as used; False if there is none, or it was idle for too long.
        """

    def end(self, session_id: int) -> None:
        """End a session, if it is open."""

    def end_all(self) -> None:
        """End all sessions."""

    def sweep(self, now_ns: int) -> None:
        """End sessions that are idle for too long."""

    def take_ended(self) -> list[tuple[int, Literal['closed', 'idle', 'limit', 'memory', 'diverged'], numpy.typing.NDArray[numpy.int32]]]:
        """
        Return the sessions that ended since the last call: number, reason, and the text that their memories have learned.
        """

class StepHandler:
    """Answers steps from sessions and graphs."""

    def __init__(self, sessions: SessionTable, *, check_options: Callable[[bytes], object], graph_of: Callable[[str, Any], tuple[Drafter, int]], default_generation: Callable[[], int], max_sequences: int, max_tokens: int, max_nodes: int, max_step_nodes: int, max_message_bytes: int, budget: int) -> None:
        """
        Answer steps within limits; ``budget`` is the server's default of nodes.

        ``check_options`` refuses a StrategyOptions with an option that is not served. ``graph_of`` finds the drafter and
        the generation for sequences without a session, by the graph's name and the principal of the call.
        ``default_generation`` returns the generation if no graph drafts. None of them may refer to this object, because
        it would never be freed.
        """

    def answer(self, payload: bytes, is_enveloped: bool, tenants: Sequence[str] | None, draft_id: int, now_ns: int, principal: object, most_ns: int | None = None) -> tuple[bytes, int, int, int, int, int] | None:
        """
        Answer a DraftRequest, or a StreamDraftRequest. Return the response, and the numbers of sequences, drafted nodes,
        empty drafts although nodes were requested, drafts without their graph's neural model, and nanoseconds.

        ``tenants``: tenants whose sessions may be used; None: all. With ``most_ns``, a step that may take longer is not
        run, and the result is None.
        """

class UnreadRow:
    """The end of a sequence that ended with text that no drafter has read."""

    @property
    def id(self) -> int:
        """The sequence."""

    @property
    def begun(self) -> int:
        """Length of its text when it began."""

    @property
    def read(self) -> int:
        """Length of its text when it was last read; 0 if it never was."""

    @property
    def size(self) -> int:
        """Length of its whole text."""

    @property
    def tail(self) -> list[int]:
        """Its last tokens."""

class Batch:
    """
    The rows of a batch as numbered sequences. Keeps references to their texts.
    """

    def __init__(self, session_ids: Sequence[int], texts: list[Any]) -> None:
        """Take known sequences and their whole texts."""

    @property
    def session_ids(self) -> list[int]:
        """Per row, its sequence."""

    @property
    def texts(self) -> list[Any]:
        """The texts as given."""

    @property
    def begun(self) -> list[int]:
        """Rows that begin a sequence."""

    @property
    def ended(self) -> list[int]:
        """Sequences that no row continues."""

    @property
    def unread(self) -> list[UnreadRow]:
        """The ends of those ended sequences whose text was not all read."""

    @property
    def is_changed(self) -> bool:
        """Whether a sequence has begun or ended."""

    @property
    def num_new(self) -> int:
        """Number of new tokens in continued sequences."""

class RowTracker:
    """Finds the sequences of an engine's rows, from batch to batch."""

    def __init__(self, most_new: int) -> None:
        """``most_new``: most tokens that a step adds to a row."""

    def match(self, texts: list[Any], names: Sequence[str] | None) -> Batch:
        """
        Return the sequences of all rows.

        ``texts``: whole texts, including prompts. ``names``: names of their requests, if the engine names them.
        """

    def follow(self, texts: list[Any]) -> bool:
        """
        Return whether the rows are those of the latest batch, in order, and store their texts.

        If they are, this replaces :meth:`match`, at a fraction of its time. If not, some texts may have been stored,
        and :meth:`match` must be called next.
        ``texts``: whole texts of unnamed requests.
        """

    def prompt_lengths(self) -> list[int]:
        """
        For each row of the latest batch that was never read, the length of its text when it began; otherwise 0.
        """

    def mark_prompts_read(self) -> None:
        """
        Record that the drafter has read the texts with which the latest batch's sequences began.
        """

    def mark_read(self) -> None:
        """Record that the drafter has read the texts of the latest batch."""

def best_size(gains: Sequence[float], seconds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], rate: float) -> int:
    """
    Return the number of units to add to a pass, the best first, that maximises gains - rate * seconds.

    ``gains``: expected tokens of each unit, descending. ``seconds``: durations of the pass with 0, 1, ... units.
    ``rate``: tokens per second that it must earn.
    """

class RowDrafts:
    """Drafts of the rows of an engine's batch, concatenated."""

    def __init__(self, lengths: Sequence[int], token_ids: Sequence[int], parents: Sequence[int], path_probabilities: Sequence[float], num_drafted: int | None = None) -> None:
        """
        Take the number of nodes of every row, and the fields of :class:`~speculant_graph.types.Draft` for all nodes.
        """

    def __len__(self) -> int: ...

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all rows."""

    @property
    def num_drafted(self) -> int:
        """Number of drafted nodes, including those that were not kept."""

    @property
    def lengths(self) -> list[int]:
        """Number of nodes of every row."""

    @property
    def token_ids(self) -> list[int]:
        """Token ids of all nodes."""

    @property
    def parents(self) -> list[int]:
        """Parents of all nodes; within a row 0 is its end, j + 1 its node j."""

    @property
    def path_probabilities(self) -> list[float]:
        """Path probabilities of all nodes; empty if the strategy has none."""

    @property
    def largest_id(self) -> int:
        """The largest token id; -1 without nodes."""

    def lists(self) -> list[list[int]]:
        """Return the tokens of every row."""

class LocalSteps:
    """The sessions of one drafter in this process, and their steps."""

    def __init__(self, drafter: Drafter) -> None: ...

    def __len__(self) -> int: ...

    def open(self, session_id: int, memory: LearnedMemory, learns: bool) -> None:
        """
        Open a session; its number must not be in use. ``learns``: later sequences may learn from it.
        """

    def end(self, session_id: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """End a session, if it is open; return what its memory has learned."""

    def accept(self, session_id: int, token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], is_prompt: bool) -> None:
        """Add tokens to a sequence, and learn from tokens after the prompt."""

    def add_top_k(self, session_id: int, nodes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        Take the target's top tokens after nodes of the latest draft; they are learned with the next tokens.
        """

    def num_bytes(self, session_id: int) -> int:
        """Return a sequence's own memory in bytes."""

    def changed(self, session_ids: Sequence[int], texts: list[Any]) -> list[int]:
        """
        Return the sessions whose texts do not continue their known tokens; open these again.
        """

    def draft(self, session_ids: Sequence[int], texts: list[Any], budgets: Sequence[int], seeds: Sequence[int], least_probabilities: Sequence[float], feedback: list[Any], settings: DraftSettings, max_entries: int, draft_id: int) -> list[speculant_graph.types.Draft]:
        """
        Draft for a batch.

        ``texts`` continue the known tokens of their sequences; an empty text adds no tokens. ``feedback``: per sequence
        None, or the verified draft, nodes, and the target's top tokens after each. A draft ends where another q may
        not fit into ``max_entries``.
        """

    def draft_contexts(self, contexts: list[Any], budgets: Sequence[int], seeds: Sequence[int], positions: Sequence[int], settings: DraftSettings, max_entries: int) -> list[speculant_graph.types.Draft]:
        """
        Draft for temporary sequences that end in these tokens. ``positions`` are those of the first drafted tokens.
        """

    def draft_rows(self, batch: Batch, budgets: Sequence[int], settings: DraftSettings, least_probability: float, seconds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, rate: float) -> RowDrafts:
        """
        Draft for the rows of an engine's batch, and keep the nodes that pay: their expected tokens exceed those that
        the seconds they add to the pass must earn at ``rate``.

        ``seconds``: durations of passes over 0, 1, ... tokens; None keeps whole drafts.
        """

class RequestWriter:
    """A DraftRequest under construction, sequence by sequence."""

    def __init__(self, graph: bytes, options: bytes) -> None:
        """
        Begin a message. ``graph``: its name in UTF-8; ``options``: a StrategyOptions.
        """

    def add(self, token_ids: Sequence[int], session_id: int = 0, position: int = 0, node_budget: int | None = None, seed: int = 0, least_probability: float = 0.0, draft_id: int = 0, nodes: Sequence[int] = (), rows: numpy.typing.NDArray[numpy.int64] | None = None) -> None:
        """
        Add a sequence; if a number does not fit, refuse it and add nothing.

        ``token_ids``: tokens that are new to its session, or, if ``session_id`` is 0, the last tokens of a sequence without a
        session; ``position``: index of the first of them in the whole sequence. ``node_budget``: most nodes to draft; None,
        for all sequences or for none, means the server's default. ``draft_id``, ``nodes`` and ``rows``: as in
        :class:`~speculant_graph.types.Feedback`.
        """

    def payload(self, step_id: int | None = None) -> bytes:
        """
        Return the message, or, with a step id, the StreamDraftRequest with it. Arrays of defaults stay empty.
        """

class StepResponse:
    """
    The response to a step; values per sequence are in the order of the sequences.
    """

    @property
    def graph_generation(self) -> int:
        """Generation of the graph that drafted; 0 if there were several."""

    @property
    def draft_id(self) -> int:
        """
        Identifies the response in later feedback; never 0 if drafts have nodes.
        """

    @property
    def server_time_ns(self) -> int:
        """Time spent on the step in the server, nanoseconds."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """Per sequence, a ``SequenceStatus``."""

    @property
    def next_positions(self) -> tuple[int, ...]:
        """
        Per sequence, the position that the server expects next; 0 without a session.
        """

    @property
    def generations(self) -> tuple[int, ...]:
        """Per sequence, generation of the graph that drafted."""

    @property
    def drafts(self) -> list[speculant_graph.types.Draft]:
        """Empty unless the status is OK."""

def read_step_id(payload: bytes) -> int:
    """Return the step id of a StreamDraftRequest."""

def read_answer_step_id(payload: bytes) -> int:
    """
    Return the step id of a StreamDraftResponse. DrafterUnavailableError: it can't be parsed.
    """

def read_answer(payload: bytes, is_enveloped: bool, budgets: Sequence[int], vocabulary_size: int, strategy: str) -> StepResponse | bytes:
    """
    Return the content of a DraftResponse or a StreamDraftResponse; for a failed step, its StepError.

    ``budgets``: per sequence, requested nodes. A response that breaks a rule of the wire is refused, so that
    a draft can be verified safely.
    """

def record_lock_holds(is_recorded: bool) -> None:
    """
    Start, or stop, recording how long locks are held in the whole process.
    """

def take_lock_holds() -> dict[str, tuple[int, int]]:
    """
    Return and reset the number of recorded holds of each kind of lock, and the longest hold in nanoseconds.
    """

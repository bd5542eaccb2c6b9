"""
Look-ups, drafts and what they learn, and the steps of the wire, in C++. Calls work without the GIL, and raise
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
        where it lies outside, or the model is none.
        """

    def match(self, token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[int, int]:
        """
        Return (order, record) of the longest end that has successors; (0, 0) if none has.
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
        Return a range of n-grams of one length, one after another: ``length`` tokens each.
        """

    def count_known(self, token_ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[list[int]]:
        """Return how much of a text is known, five numbers for each order."""

ROW_WIDTH: int = 4

ROW_DEPTH: int = 4

MAX_GRAPHS: int = 4

def methods() -> list[str]:
    """How strategies may draft, by name."""

class Calibration:
    """How reliable each kind of context is; learned while drafting."""

    def __init__(self, mixer_weights: numpy.typing.NDArray[numpy.float32] | None = None) -> None:
        """
        Make tables that know nothing yet. ``mixer_weights``: of what has the last word on candidates, if anything
        has. ValueError where these are none.
        """

    @property
    def records_examples(self) -> bool:
        """
        Whether positions that are learned from are kept, for :func:`train_mixer`.
        """

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
        """Take tables of these shapes. ValueError where they are of others."""

    def copy(self) -> Calibration:
        """Return tables that change apart from these."""

class LearnedMemory:
    """What one tenant's sequences accepted."""

    def __init__(self, max_tokens: int) -> None: ...

    def __len__(self) -> int: ...

    def add(self, token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Add a text; no match runs across its ends."""

    def target_rows(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32]]:
        """
        Return the target's rows that its sequences share, for :meth:`restore_target_rows`: slots, their keys, and
        their rows one after another.
        """

    def restore_target_rows(self, slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Fill slots as :meth:`target_rows` returned them. IndexError where there is none.
        """

    def take_is_changed(self) -> bool:
        """Return whether rows of the target came since the last call."""

    def set_graphs(self, graphs: Sequence[Trie]) -> None:
        """
        Take the graphs of older text, the largest first. Sequences that begin from now on draft from them, too.
        """

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing is added any more by sequences that end."""

    @is_forgotten.setter
    def is_forgotten(self, arg: bool, /) -> None: ...

class DraftSettings:
    """How to draft; siblings by their number on the wire."""

    def __init__(self, *, strategy: str, method: str, fills_budget: bool, sources: Sequence[bool], max_depth: int, max_branches: int, max_candidates: int, temperature: float, is_coupled: bool, siblings: int, omits_proposals: bool) -> None:
        """
        ``strategy``: as drafts name it. ``method``: one of :func:`methods`. ``fills_budget``: whatever least
        probability is asked for. ``sources``: session, corpus, skip-gram, learned, target rows, neural.
        """

class Drafter:
    """Drafts from graphs, and from what sequences accept."""

    def __init__(self, graphs: Sequence[Trie], vocabulary_size: int, calibration: Calibration, max_session_tokens: int, num_threads: int, settings_of: object) -> None:
        """
        Draft from at most MAX_GRAPHS graphs, or from none; ids below ``vocabulary_size`` are tokens.

        ``num_threads``: that draft trees for a batch; drafts are the same on any number.
        ``settings_of`` returns the settings that a StrategyOptions (bytes) asks for.
        """

    @property
    def num_read(self) -> int:
        """
        Records of the graph that calls which have ended read for the most frequent successors of contexts.
        """

def is_model(model_words: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], vocabulary_size: int) -> bool:
    """
    Return whether words can be read as a neural model of such a vocabulary.
    """

def propose(model_words: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], token_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], others: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[tuple[int, int]]:
    """
    Return what a neural model finds probable after some tokens, of its most frequent tokens and ``others``:
    (token, ten-thousandths of a probability), best first. ValueError where the words are no model's.
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
    Return what no build would have written, or None; in time linear in the graph's size.
    """

def count_values(token_ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], prefix: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Add up which values follow a prefix: ``counts[value] += 1``, shape ``[vocabulary_size + 1]``.
    """

def gather_keys(token_ids: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], prefix: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], low: int, high: int, length: int, bits: int, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')]) -> int:
    """
    Pack the n-grams of all positions whose next values are ``prefix`` and then one of ``low`` to ``high - 1``.
    Return their number; ``keys``, shape ``[at least so many, num_words]``, holds them in the order of positions.
    """

def sort_keys(keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')], spare: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')], depth: int, low: int, high: int, length: int, bits: int) -> None:
    """
    Sort keys in place, which share ``depth`` tokens and go on with values of ``low`` to ``high - 1``.
    ``spare`` has their shape and is overwritten.
    """

class Emitter:
    """
    Turns sorted keys, given in any portions, into records. For one thread.
    """

    def __init__(self, length: int, bits: int, capacity: int) -> None:
        """Keep at most ``capacity`` records of every level at a time."""

    def emit(self, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, row: int) -> int:
        """
        Write the records of keys from ``row`` on until a buffer is full, and return the next row. Keys ascend and
        are not below those given before, shape ``[num_keys, num_words]``; without weights each counts once.
        """

    @property
    def records(self) -> list[Annotated[NDArray[numpy.uint32], dict(shape=(None, None))]]:
        """
        The records of every level that the last call wrote, shape ``[n, 4]``; not copies.
        """

    @property
    def num_nodes(self) -> list[int]:
        """Records so far of every level."""

    @property
    def totals(self) -> list[int]:
        """Sums of counts so far of every level."""

class KeyReader:
    """
    Walks through a graph and writes the keys of n-grams with own counts. For one thread.
    """

    def __init__(self, graph: Trie, bits: int, min_count: int) -> None:
        """
        Leave out n-grams with lower counts; their counts stay with the n-gram that they continue.
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
    Write the offset of the most frequent child, of equals the first, into records ``start`` to ``stop - 1``.
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
    Return the token with the largest sum of score and noise, and the sum: NaN where a score is NaN or +inf.
    """

def top_p_filter(scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], probabilities: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], most_removed: float, kept: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], float]:
    """
    Copy the scores of tokens that are more probable than those at the border of the nucleus, others become -inf.
    Return the tokens at the border, which are about equally probable, and the mass of those below it.
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
        Make an empty table of so many sessions and bytes at most. Beyond that, the session that was not used for
        longest is dropped, unless it was used within ``busy_ns``.
        """

    def __len__(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """Memory of all sessions."""

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
        Note that a session is used; False if there is none, or it was idle for too long.
        """

    def end(self, session_id: int) -> None:
        """End a session, if it is open."""

    def end_all(self) -> None:
        """End all sessions."""

    def sweep(self, now_ns: int) -> None:
        """End the sessions that are idle for too long."""

    def take_ended(self) -> list[tuple[int, Literal['closed', 'idle', 'limit', 'memory', 'diverged'], numpy.typing.NDArray[numpy.int32]]]:
        """
        Return the sessions that ended since the last call: number, why, and what their memories have learned.
        """

class StepAnswerer:
    """Answers steps from sessions and graphs."""

    def __init__(self, sessions: SessionTable, *, check_options: Callable[[bytes], object], graph_of: Callable[[str, Any], tuple[Drafter, int]], default_generation: Callable[[], int], max_sequences: int, max_tokens: int, max_nodes: int, max_step_nodes: int, max_message_bytes: int, budget: int) -> None:
        """
        Answer steps within limits; ``budget`` is what requests leave to the server.

        ``check_options`` refuses a StrategyOptions that asks for what is not served. ``graph_of`` finds the drafter and
        the generation for sequences without a session, by the graph's name and the principal of the call.
        ``default_generation`` names the generation where no graph answers. None of them may refer to this object: it
        would never be freed.
        """

    def answer(self, payload: bytes, is_enveloped: bool, tenants: Sequence[str] | None, draft_id: int, now_ns: int, principal: object, most_ns: int | None = None) -> tuple[bytes, int, int, int, int, int] | None:
        """
        Answer a DraftRequest, or a StreamDraftRequest: the answer, sequences, nodes drafted, drafts that are
        empty though some nodes were asked for, those without the neural model of their graph, and nanoseconds.

        ``tenants``: whose sessions may be used; None: all. With ``most_ns``, a step that may take longer is not
        answered: None, and nothing was done.
        """

class Batch:
    """
    The rows of a batch as sequences, which have numbers. Holds on to their texts.
    """

    @property
    def session_ids(self) -> list[int]:
        """Per row, its sequence."""

    @property
    def texts(self) -> list[Any]:
        """As they were given."""

    @property
    def begun(self) -> list[int]:
        """Rows that begin a sequence."""

    @property
    def ended(self) -> list[int]:
        """Sequences that no row continues."""

    @property
    def is_changed(self) -> bool:
        """Whether a sequence has begun or ended."""

    @property
    def num_new(self) -> int:
        """Tokens that are new to the sequences that go on."""

class RowTracker:
    """Finds the sequences of an engine's rows, from batch to batch."""

    def __init__(self, most_new: int) -> None:
        """``most_new``: most tokens that a step adds to a row."""

    def match(self, texts: list[Any], names: Sequence[str] | None) -> Batch:
        """
        Return the sequences of all rows.

        ``texts``: prompts included. ``names``: of their requests, if the engine names them.
        """

def best_size(gains: Sequence[float], seconds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], rate: float) -> int:
    """
    Return how many units to add to a pass, the best first, so that gains - rate * seconds is largest.

    ``gains``: tokens that each unit is expected to bring, descending. ``seconds``: of the pass with 0, 1, ... units.
    ``rate``: tokens a second that it must earn.
    """

class RowDrafts:
    """Drafts of the rows of an engine's batch, one after another."""

    def __init__(self, lengths: Sequence[int], token_ids: Sequence[int], parents: Sequence[int], path_probabilities: Sequence[float], num_drafted: int | None = None) -> None:
        """
        Take nodes of every row, and of all nodes what :class:`~speculant_graph.types.Draft` holds.
        """

    def __len__(self) -> int: ...

    @property
    def num_nodes(self) -> int:
        """Nodes of all rows."""

    @property
    def num_drafted(self) -> int:
        """Nodes that were drafted, those that were not kept included."""

    @property
    def lengths(self) -> list[int]:
        """Nodes of every row."""

    @property
    def token_ids(self) -> list[int]:
        """Of all nodes."""

    @property
    def parents(self) -> list[int]:
        """Of all nodes; within a row 0 is its end, j + 1 its node j."""

    @property
    def path_probabilities(self) -> list[float]:
        """Of all nodes; empty if the strategy has none."""

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
        """Add tokens to a sequence, and learn from those of no prompt."""

    def add_rows(self, session_id: int, nodes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        Take the target's top tokens after nodes of the latest draft, to be learned with the tokens that come next.
        """

    def num_bytes(self, session_id: int) -> int:
        """Return the memory that is a sequence's own."""

    def changed(self, session_ids: Sequence[int], texts: list[Any]) -> list[int]:
        """
        Return the sessions whose texts do not continue what was taken of them: open those again.
        """

    def draft(self, session_ids: Sequence[int], texts: list[Any], budgets: Sequence[int], seeds: Sequence[int], least_probabilities: Sequence[float], feedback: list[Any], settings: DraftSettings, max_entries: int, draft_id: int) -> list[speculant_graph.types.Draft]:
        """
        Draft for a batch.

        ``texts`` continue what was taken of them; of an empty one nothing is new. ``feedback``: per sequence None, or
        the draft that was verified, nodes, and the target's top tokens after each. Drafts end where another q may not
        fit into ``max_entries``.
        """

    def draft_contexts(self, contexts: list[Any], budgets: Sequence[int], seeds: Sequence[int], positions: Sequence[int], settings: DraftSettings, max_entries: int) -> list[speculant_graph.types.Draft]:
        """
        Draft for sequences of which these are the last tokens; nothing of them is remembered. ``positions`` are those
        of the first tokens drafted.
        """

    def draft_rows(self, batch: Batch, budgets: Sequence[int], settings: DraftSettings, least_probability: float, seconds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, rate: float) -> RowDrafts:
        """
        Draft for the rows of an engine's batch, and keep what pays: nodes that bring more tokens than the seconds that
        they add to the pass would at ``rate``.

        ``seconds``: of passes over 0, 1, ... tokens; None keeps whole drafts.
        """

class RequestWriter:
    """A DraftRequest while it is written, sequence by sequence."""

    def __init__(self, graph: bytes, options: bytes) -> None:
        """
        Begin one. ``graph``: its name in UTF-8; ``options``: a StrategyOptions.
        """

    def add(self, token_ids: Sequence[int], session_id: int = 0, position: int = 0, node_budget: int | None = None, seed: int = 0, least_probability: float = 0.0, draft_id: int = 0, nodes: Sequence[int] = (), rows: numpy.typing.NDArray[numpy.int64] | None = None) -> None:
        """
        Add a sequence, or nothing where a number does not fit, which is refused.

        ``token_ids``: those that are new to its session, or, where ``session_id`` is 0, the last ones of a sequence that
        has none; ``position``: index of the first of them in the whole sequence. ``node_budget``: most nodes to draft; None,
        for all sequences or for none, leaves it to the server. ``draft_id``, ``nodes`` and ``rows``: as in
        :class:`~speculant_graph.types.Feedback`.
        """

    def payload(self, step_id: int | None = None) -> bytes:
        """
        Return the message, or, with a step id, the StreamDraftRequest round it. Arrays that hold nothing but defaults
        stay empty.
        """

class StepAnswer:
    """The answer to a step; what it says of sequences is in their order."""

    @property
    def graph_generation(self) -> int:
        """Generation of the graph that answered; 0 if there were several."""

    @property
    def draft_id(self) -> int:
        """Names the answer in later feedback; never 0 where drafts have nodes."""

    @property
    def server_time_ns(self) -> int:
        """Time spent on the step in the server, nanoseconds."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """What became of each: a ``SequenceStatus``."""

    @property
    def next_positions(self) -> tuple[int, ...]:
        """
        The position that the server expects next; 0 for a sequence without a session.
        """

    @property
    def generations(self) -> tuple[int, ...]:
        """Generation of the graph that answered."""

    @property
    def drafts(self) -> list[speculant_graph.types.Draft]:
        """Empty unless the status is OK."""

def read_step_id(payload: bytes) -> int:
    """Return the step id of a StreamDraftRequest."""

def read_answer_step_id(payload: bytes) -> int:
    """
    Return the step id of a StreamDraftResponse. DrafterUnavailableError: it is none.
    """

def read_answer(payload: bytes, is_enveloped: bool, budgets: Sequence[int], vocabulary_size: int, strategy: str) -> StepAnswer | bytes:
    """
    Return what a DraftResponse, or a StreamDraftResponse, holds; of a step that failed, its StepError.

    ``budgets``: per sequence, most nodes asked for. An answer that breaks a rule of the wire is refused, so that
    a draft can be verified safely.
    """

def record_lock_holds(is_recorded: bool) -> None:
    """
    Begin, or end, to record how long locks are held, in the whole process.
    """

def take_lock_holds() -> dict[str, tuple[int, int]]:
    """
    Return, and forget, how often the locks of each kind were held since they are recorded, and the nanoseconds of
    the longest hold.
    """

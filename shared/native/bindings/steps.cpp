// The sessions of a server, and the responses to its steps.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "arrays.hpp"
#include "step.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

constexpr const char* kReasons[] = {"closed", "idle", "limit", "memory", "diverged"};

/// A server's steps, with its Python functions.
struct ServedSteps {
  StepHandler core;
  nb::object check_options, graph_of, default_generation;

  /// For one call of a client.
  StepCallbacks host_for(nb::handle principal) const {
    return {[this](const std::string& options) {
              nb::gil_scoped_acquire acquire;
              check_options(nb::bytes(options.data(), options.size()));
            },
            [this, principal](const std::string& name) {
              nb::gil_scoped_acquire acquire;
              auto [drafter, generation] =
                  nb::cast<std::pair<std::shared_ptr<Drafter>, std::uint64_t>>(graph_of(name, principal));
              return ServedDrafter{std::move(drafter), generation};
            },
            [this] {
              nb::gil_scoped_acquire acquire;
              return nb::cast<std::uint64_t>(default_generation());
            }};
  }
};

void bind_table(nb::module_& module) {
  nb::class_<SessionTable>(module, "SessionTable", "The open sessions of a server. Times are nanoseconds.")
      .def(
          "__init__",
          [](SessionTable* self, std::size_t max_sessions, std::int64_t max_bytes, std::int64_t idle_timeout_ns,
             std::int64_t busy_ns) { new (self) SessionTable({max_sessions, max_bytes, idle_timeout_ns, busy_ns}); },
          nb::kw_only(), "max_sessions"_a, "max_bytes"_a, "idle_timeout_ns"_a, "busy_ns"_a,
          "Make an empty table with limits of sessions and bytes. Beyond them, the least recently used session is\n"
          "dropped, unless it was used within ``busy_ns``.")
      .def("__len__", [](const SessionTable& self) { return without_gil([&] { return self.size(); }); })
      .def_prop_ro(
          "num_bytes", [](const SessionTable& self) { return without_gil([&] { return self.num_bytes(); }); },
          "Memory of all sessions in bytes.")
      .def(
          "open",
          [](SessionTable& self, std::uint64_t id, std::shared_ptr<Drafter> drafter, std::uint64_t generation,
             std::string tenant, std::shared_ptr<LearnedMemory> memory, bool learns, std::int64_t now_ns) {
            without_gil([&] {
              self.open(id, {std::move(drafter), generation}, std::move(tenant), std::move(memory), learns, now_ns);
            });
          },
          "session_id"_a, "drafter"_a, "generation"_a, "tenant"_a, "memory"_a, "learns"_a, "now_ns"_a,
          "Open a session on a generation of a graph; its number must not be in use. OverloadError: there is no\n"
          "capacity, and no session is idle.")
      .def(
          "position",
          [](const SessionTable& self, std::uint64_t id) {
            return without_gil([&] {
              const auto session = self.find(id);
              if (!session) return std::optional<std::int64_t>();
              Exclusive hold(session->sequence->lock);
              return std::optional(session->sequence->size());
            });
          },
          "session_id"_a, "Return the tokens that a session has taken, without using it; None if it is not open.")
      .def(
          "use",
          [](SessionTable& self, std::uint64_t id, std::int64_t now_ns) {
            return without_gil([&] {
              const auto session = self.find(id);
              return session && self.use(*session, now_ns);
            });
          },
          "session_id"_a, "now_ns"_a, "Mark a session as used; False if there is none, or it was idle for too long.")
      .def(
          "end",
          [](SessionTable& self, std::uint64_t id) {
            without_gil([&] {
              if (const auto session = self.find(id)) self.end(*session, SessionEnd::kClosed);
            });
          },
          "session_id"_a, "End a session, if it is open.")
      .def(
          "end_all", [](SessionTable& self) { without_gil([&] { self.end_all(SessionEnd::kClosed); }); },
          "End all sessions.")
      .def(
          "sweep", [](SessionTable& self, std::int64_t now_ns) { without_gil([&] { self.sweep(now_ns); }); },
          "now_ns"_a, "End sessions that are idle for too long.")
      .def(
          "take_ended",
          [](SessionTable& self) {
            const std::vector<EndedSession> ended = without_gil([&] { return self.take_ended(); });
            nb::list sessions;
            for (const auto& [session, reason, learned] : ended) {
              sessions.append(
                  nb::make_tuple(session->id, kReasons[static_cast<std::size_t>(reason)], as_array(learned)));
            }
            return sessions;
          },
          nb::sig(
              "def take_ended(self) -> list[tuple[int, "
              "typing.Literal['closed', 'idle', 'limit', 'memory', 'diverged'], numpy.typing.NDArray[numpy.int32]]]"),
          "Return the sessions that ended since the last call: number, reason, and the text that their memories have "
          "learned.");
}

}  // namespace

void bind_steps(nb::module_& module) {
  bind_table(module);
  nb::class_<ServedSteps>(module, "StepHandler", "Answers steps from sessions and graphs.")
      .def(
          "__init__",
          [](ServedSteps* self, std::shared_ptr<SessionTable> sessions, nb::object check_options, nb::object graph_of,
             nb::object default_generation, std::size_t max_sequences, std::size_t max_tokens, std::uint32_t max_nodes,
             std::uint64_t max_step_nodes, std::size_t max_message_bytes, std::uint32_t budget) {
            const StepLimits limits{max_sequences, max_tokens, max_nodes, max_step_nodes, max_message_bytes, budget};
            new (self) ServedSteps{{limits, std::move(sessions)},
                                   std::move(check_options),
                                   std::move(graph_of),
                                   std::move(default_generation)};
          },
          "sessions"_a, nb::kw_only(), "check_options"_a, "graph_of"_a, "default_generation"_a, "max_sequences"_a,
          "max_tokens"_a, "max_nodes"_a, "max_step_nodes"_a, "max_message_bytes"_a, "budget"_a,
          nb::sig("def __init__(self, sessions: SessionTable, *, "
                  "check_options: collections.abc.Callable[[bytes], object], "
                  "graph_of: collections.abc.Callable[[str, typing.Any], tuple[Drafter, int]], "
                  "default_generation: collections.abc.Callable[[], int], max_sequences: int, max_tokens: int, "
                  "max_nodes: int, max_step_nodes: int, max_message_bytes: int, budget: int) -> None"),
          "Answer steps within limits; ``budget`` is the server's default of nodes.\n\n"
          "``check_options`` refuses a StrategyOptions with an option that is not served. ``graph_of`` finds the "
          "drafter and\n"
          "the generation for sequences without a session, by the graph's name and the principal of the call.\n"
          "``default_generation`` returns the generation if no graph drafts. None of them may refer to this object, "
          "because\n"
          "it would never be freed.")
      .def(
          "answer",
          [](ServedSteps& self, const nb::bytes& payload, bool is_enveloped, const Tenants& tenants,
             std::uint64_t draft_id, std::int64_t now_ns, nb::handle principal,
             std::optional<std::int64_t> most_ns) -> nb::object {
            const std::string_view bytes(payload.c_str(), payload.size());
            StepCallbacks host = self.host_for(principal);
            StepCounts counts;
            const auto answer = without_gil([&] {
              return self.core.answer(bytes, is_enveloped, tenants, draft_id, now_ns, host, counts,
                                      most_ns.value_or(std::numeric_limits<std::int64_t>::max()));
            });
            if (!answer) return nb::none();
            return nb::make_tuple(nb::bytes(answer->view().data(), answer->view().size()), counts.num_sequences,
                                  counts.num_nodes, counts.num_empty, counts.num_without_neural, counts.elapsed_ns);
          },
          "payload"_a, "is_enveloped"_a, "tenants"_a.none(), "draft_id"_a, "now_ns"_a, "principal"_a.none(),
          "most_ns"_a.none() = nb::none(),
          nb::sig("def answer(self, payload: bytes, is_enveloped: bool, tenants: collections.abc.Sequence[str] | None, "
                  "draft_id: int, now_ns: int, principal: object, "
                  "most_ns: int | None = None) -> tuple[bytes, int, int, int, int, int] | None"),
          "Answer a DraftRequest, or a StreamDraftRequest. Return the response, and the numbers of sequences, drafted "
          "nodes,\n"
          "empty drafts although nodes were requested, drafts without their graph's neural model, and nanoseconds.\n\n"
          "``tenants``: tenants whose sessions may be used; None: all. With ``most_ns``, a step that may take longer "
          "is not\n"
          "run, and the result is None.");
}

}  // namespace speculant

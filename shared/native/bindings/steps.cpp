// The sessions of a server, and the answers to its steps.
#include <nanobind/stl/optional.h>
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

/// What Python knows of options and graphs; for one call.
StepHost host_of(nb::handle host, nb::handle principal) {
  return {[host](const std::string& options) {
            nb::gil_scoped_acquire acquire;
            host.attr("check_options")(nb::bytes(options.data(), options.size()));
          },
          [host, principal](const std::string& name) {
            nb::gil_scoped_acquire acquire;
            const nb::object graph = host.attr("graph_for")(name, principal);
            return ServedDrafter{nb::cast<std::shared_ptr<Drafter>>(graph.attr("drafter").attr("core")),
                                 nb::cast<std::uint64_t>(graph.attr("generation"))};
          },
          [host] {
            nb::gil_scoped_acquire acquire;
            return nb::cast<std::uint64_t>(host.attr("default_generation")());
          }};
}

void bind_table(nb::module_& module) {
  nb::class_<SessionTable>(module, "SessionTable", "The open sessions of a server. Times are nanoseconds.")
      .def(
          "__init__",
          [](SessionTable* self, std::size_t max_sessions, std::int64_t max_bytes, std::int64_t idle_timeout_ns,
             std::int64_t busy_ns) { new (self) SessionTable({max_sessions, max_bytes, idle_timeout_ns, busy_ns}); },
          nb::kw_only(), "max_sessions"_a, "max_bytes"_a, "idle_timeout_ns"_a, "busy_ns"_a,
          "Make an empty table of so many sessions and bytes at most. Beyond that, the session that was not used for\n"
          "longest is dropped, unless it was used within ``busy_ns``.")
      .def("__len__", [](const SessionTable& self) { return without_gil([&] { return self.size(); }); })
      .def_prop_ro(
          "num_bytes", [](const SessionTable& self) { return without_gil([&] { return self.num_bytes(); }); },
          "Memory of all sessions.")
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
              const auto session = self.look_at(id);
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
              const auto session = self.look_at(id);
              return session && self.use(*session, now_ns);
            });
          },
          "session_id"_a, "now_ns"_a,
          "Note that a session is used; False if there is none, or it was idle for too long.")
      .def(
          "end",
          [](SessionTable& self, std::uint64_t id) {
            without_gil([&] {
              if (const auto session = self.look_at(id)) self.end(*session, SessionEnd::kClosed);
            });
          },
          "session_id"_a, "End a session, if it is open.")
      .def(
          "end_all", [](SessionTable& self) { without_gil([&] { self.end_all(SessionEnd::kClosed); }); },
          "End all sessions.")
      .def(
          "sweep", [](SessionTable& self, std::int64_t now_ns) { without_gil([&] { self.sweep(now_ns); }); },
          "now_ns"_a, "End the sessions that are idle for too long.")
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
          "Return the sessions that ended since the last call: number, why, and what their memories have learned.");
}

}  // namespace

void bind_steps(nb::module_& module) {
  bind_table(module);
  nb::class_<StepAnswerer>(module, "StepAnswerer", "Answers steps from sessions and graphs.")
      .def(
          "__init__",
          [](StepAnswerer* self, std::shared_ptr<SessionTable> sessions, std::size_t max_sequences,
             std::size_t max_tokens, std::uint32_t max_nodes, std::uint64_t max_step_nodes,
             std::size_t max_message_bytes, std::uint32_t budget) {
            new (self) StepAnswerer({max_sequences, max_tokens, max_nodes, max_step_nodes, max_message_bytes, budget},
                                    std::move(sessions));
          },
          "sessions"_a, nb::kw_only(), "max_sequences"_a, "max_tokens"_a, "max_nodes"_a, "max_step_nodes"_a,
          "max_message_bytes"_a, "budget"_a,
          "Answer steps within limits; ``budget`` is what requests leave to the server.")
      .def(
          "answer",
          [](StepAnswerer& self, const nb::bytes& payload, bool is_enveloped, const Tenants& tenants,
             std::uint64_t draft_id, std::int64_t now_ns, nb::handle host, nb::handle principal,
             std::optional<std::int64_t> most_ns) -> nb::object {
            const std::string_view bytes(payload.c_str(), payload.size());
            StepHost python = host_of(host, principal);
            StepCounts counts;
            const auto answer = without_gil([&] {
              return self.answer(bytes, is_enveloped, tenants, draft_id, now_ns, python, counts,
                                 most_ns.value_or(std::numeric_limits<std::int64_t>::max()));
            });
            if (!answer) return nb::none();
            return nb::make_tuple(nb::bytes(answer->view().data(), answer->view().size()), counts.num_sequences,
                                  counts.num_nodes, counts.num_empty, counts.elapsed_ns);
          },
          "payload"_a, "is_enveloped"_a, "tenants"_a.none(), "draft_id"_a, "now_ns"_a, "host"_a, "principal"_a.none(),
          "most_ns"_a.none() = nb::none(),
          nb::sig("def answer(self, payload: bytes, is_enveloped: bool, tenants: collections.abc.Sequence[str] | None, "
                  "draft_id: int, now_ns: int, host: object, principal: object, "
                  "most_ns: int | None = None) -> tuple[bytes, int, int, int, int] | None"),
          "Answer a DraftRequest, or a StreamDraftRequest: the answer, sequences, nodes drafted, drafts that are\n"
          "empty though some nodes were asked for, and nanoseconds.\n\n"
          "``tenants``: whose sessions may be used; None: all. ``host`` knows the rest:\n"
          "``check_options(bytes)`` refuses what is not served, ``graph_for(name, principal)`` finds the graph of\n"
          "sequences without a session, ``default_generation()`` names the generation where no graph answers.\n\n"
          "With ``most_ns``, a step that may take longer is not answered: None, and nothing was done.");
}

}  // namespace speculant

// Neural models: their proposals, and their training.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "arrays.hpp"
#include "neural/proposals.hpp"
#include "neural/trainer.hpp"

namespace speculant {
namespace {

using namespace nb::literals;
using Words = Vector<const std::uint32_t>;

std::vector<std::pair<Token, std::uint32_t>> propose(const Words& words, const Ids& ids, const Ids& others) {
  const neural::Model model(as_span(words));
  std::vector<Token> tokens(neural::kLookBack, kNoToken);
  for (Token token : tokens_of(as_span(ids), kMaxVocabulary)) tokens.push_back(token);
  neural::Proposer proposer;
  std::vector<std::pair<Token, std::uint32_t>> found;
  const auto known = tokens_of(as_span(others), kMaxVocabulary);
  for (const auto& [token, count] : proposer.propose(model, tokens.data() + tokens.size(), known)) {
    found.emplace_back(token, count);
  }
  return found;
}

nb::object train(const Words& ids, const Table<const std::int64_t>& left_out, Token vocabulary_size,
                 std::int64_t num_positions, const std::optional<Words>& start, const nb::callable& goes_on) {
  if (left_out.shape(1) != 2) throw std::invalid_argument("parts have a first position and one after the last");
  if (vocabulary_size < 1 || vocabulary_size > kMaxVocabulary) throw std::invalid_argument("no such vocabulary");
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;
  for (std::size_t each = 0; each < left_out.shape(0); ++each) parts.emplace_back(left_out(each, 0), left_out(each, 1));
  const neural::Model model = start ? neural::Model(as_span(*start)) : neural::Model();
  const neural::Lesson lesson{as_span(ids), parts, vocabulary_size, num_positions};
  return nb::cast(as_array(without_gil([&] {
    return neural::train(lesson, model, [&](std::int64_t done, std::int64_t all) {
      nb::gil_scoped_acquire acquire;
      return nb::cast<bool>(goes_on(done, all));
    });
  })));
}

}  // namespace

void bind_neural(nb::module_& module) {
  module.def(
      "is_model",
      [](const Words& words, Token vocabulary_size) {
        try {
          return neural::Model(as_span(words)).vocabulary_size() == vocabulary_size;
        } catch (const std::invalid_argument&) {
          return false;
        }
      },
      "model_words"_a, "vocabulary_size"_a, "Return whether words can be read as a neural model of such a vocabulary.");
  module.def(
      "propose", &propose, "model_words"_a, "token_ids"_a, "others"_a,
      "Return what a neural model finds probable after some tokens, of its most frequent tokens and ``others``:\n"
      "(token, ten-thousandths of a probability), best first. ValueError if the words are not a model.");
  module.def(
      "train_neural", &train, "token_ids"_a, "left_out"_a, "vocabulary_size"_a, "num_positions"_a, "start"_a.none(),
      "goes_on"_a,
      nb::sig("def train_neural(token_ids: numpy.typing.NDArray[numpy.uint32], left_out: "
              "numpy.typing.NDArray[numpy.int64], vocabulary_size: int, num_positions: int, start: "
              "numpy.typing.NDArray[numpy.uint32] | None, goes_on: collections.abc.Callable[[int, int], bool]) -> "
              "numpy.typing.NDArray[numpy.uint32]"),
      "Train a neural model on a text, or one further; return its words. None of them if there is nothing to\n"
      "learn from, or if ``goes_on(done, all)``, called now and then, returned False.\n\n"
      "``left_out``: parts of the text that nothing is learned from, (first, after the last), ascending.\n"
      "``num_positions``: of the text that are learned from, which takes about 10 us each.");
}

}  // namespace speculant

// The mixer: its weights, and their training.
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "arrays.hpp"
#include "mixer/training.hpp"

namespace speculant {
namespace {

using namespace nb::literals;
using Floats = Vector<const float>;
using Tables = std::shared_ptr<Calibration>;

nb::object train(const std::vector<Tables>& calibrations, std::uint64_t seed, int num_passes, float rate) {
  std::vector<const mixer::Examples*> examples;
  for (const Tables& each : calibrations) {
    if (each->examples) examples.push_back(each->examples.get());
  }
  return nb::cast(as_array(without_gil([&] {
    const mixer::Weights weights = mixer::train(examples, seed, num_passes, rate);
    const auto* values = reinterpret_cast<const float*>(&weights);
    return std::vector<float>(values, values + mixer::kNumWeights);
  })));
}

std::array<double, 2> losses(const Floats& weights, const Tables& calibration) {
  const mixer::Weights read = mixer::read_weights(as_span(weights));
  return without_gil(
      [&] { return calibration->examples ? mixer::losses(read, *calibration->examples) : std::array{0.0, 0.0}; });
}

}  // namespace

void bind_mixer(nb::module_& module) {
  module.attr("NUM_MIXER_WEIGHTS") = mixer::kNumWeights;
  module.def(
      "train_mixer", &train, "calibrations"_a, "seed"_a, "num_passes"_a, "rate"_a,
      nb::sig("def train_mixer(calibrations: collections.abc.Sequence[Calibration], seed: int, num_passes: int, rate: "
              "float) -> numpy.typing.NDArray[numpy.float32]"),
      "Train weights of the mixer on the positions that calibrations recorded. Seconds for 100,000 of them; nothing\n"
      "may be drafted with these calibrations meanwhile.");
  module.def(
      "mixer_losses", &losses, "weights"_a, "calibration"_a,
      "Return what a true token of recorded positions costs on average, in natural units of information: before\n"
      "the mixer, and after it. ValueError where the weights are none.");
}

}  // namespace speculant

#include "mixer/mixer.hpp"

#include <algorithm>

namespace speculant::mixer {

void Mixer::mix(const Weights& weights, const Sources& sources, const MatchedContexts& found, bool is_inside,
                double reach, Mixture& mixture) {
  if (!observer_.look(sources, found, mixture, is_inside, reach)) return;
  const auto mixed = network_.mix(weights, observer_.features());
  double sum = 0.0;
  for (const std::int16_t index : observer_.scored()) {
    sum += std::min(mixture.candidates[static_cast<std::size_t>(index)].probability, 1.0);
  }
  const double scale = std::min(static_cast<double>(mixed.back()) / std::max(kLeastOthers, 1.0 - sum), 1.0);
  for (std::size_t index = 0; index < mixture.candidates.size(); ++index) {
    const int place = observer_.place_of(index);
    double& probability = mixture.candidates[index].probability;
    probability = place < 0 ? probability * scale : static_cast<double>(mixed[static_cast<std::size_t>(place)]);
  }
}

}  // namespace speculant::mixer

// Errors of refused calls; the bindings raise the error of the same name in speculant_graph/errors.py.
#pragma once

#include <stdexcept>
#include <string>

namespace speculant {

/// A caller's mistake: DraftRequestError.
struct RequestError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A limit of the drafter is exceeded: DraftLimitError, or OverloadError if waiting helps.
struct LimitError : RequestError {
  explicit LimitError(const std::string& message, double retry_delay_s = 0.0)
      : RequestError(message), retry_delay_s(retry_delay_s) {}
  double retry_delay_s;  // delay before a retry; 0: at once, but with a smaller request
};

/// The server is not a drafter: DrafterUnavailableError.
struct UnavailableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace speculant

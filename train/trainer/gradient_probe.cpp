#include "train/trainer/gradient_probe.h"

#include <algorithm>
#include <cmath>

namespace troupe::train {

Status GradientProbe::gradient_done(int unit) {
  const std::span<const float> gradient = TROUPE_TRY(engine_.units().gradient(unit)).values;
  if (found_) return {};
  const int first = layout_.units()[static_cast<std::size_t>(unit)].first_parameter;
  const auto parameters = layout_.parameters(unit);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto values = gradient.subspan(static_cast<std::size_t>(parameters[i].offset_elements),
                                         static_cast<std::size_t>(parameters[i].elements));
    bool finite = true;
    TROUPE_RETURN_IF_ERROR(
        access_.read(std::as_bytes(values), [&](std::size_t, std::span<const std::byte> piece) {
          const auto* begin = reinterpret_cast<const float*>(piece.data());
          finite = finite && std::all_of(begin, begin + piece.size() / sizeof(float),
                                         [](float x) { return std::isfinite(x); });
          return Status();
        }));
    if (!finite) {
      found_ = first + static_cast<std::int64_t>(i);
      return {};
    }
  }
  return {};
}

}  // namespace troupe::train

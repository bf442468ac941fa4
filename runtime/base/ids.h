#pragma once
// troupe/ids.h, where ids are made and formatted.

#include <fmt/format.h>

#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "troupe/ids.h"

template <typename Tag>
struct fmt::formatter<troupe::Id<Tag>> : fmt::formatter<std::string> {
  template <typename Context>
  auto format(const troupe::Id<Tag>& id, Context& context) const {
    return fmt::formatter<std::string>::format(id.to_string(), context);
  }
};

#include "scheduler/policy/resources.h"

#include <array>
#include <limits>

namespace troupe::scheduler {
namespace {

struct Suffix {
  std::string_view text;
  std::int64_t factor;
};
constexpr std::array kSuffixes = {
    Suffix{"Ki", 1LL << 10},    Suffix{"Mi", 1LL << 20},
    Suffix{"Gi", 1LL << 30},    Suffix{"Ti", 1LL << 40},
    Suffix{"K", 1'000},         Suffix{"M", 1'000'000},
    Suffix{"G", 1'000'000'000}, Suffix{"T", 1'000'000'000'000},
};
constexpr int kDecimalsMax = 4;  // kResourceUnit is 10^4
// 460 million million units: sums of two still fit, and a sum that is cut off at the largest number
// is more than any one amount.
constexpr std::int64_t kAmountMax = std::int64_t{1} << 62;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

Status bad_amount(std::string_view name, std::string_view text, std::string_view why) {
  return error(Code::kInvalidArgument,
               "'{}' is not an amount of {}: {} (write a number such as 2, 0.5 or 4Gi)", text, name,
               why);
}

// 12.5 with suffix factor f → 12.5 × f × kResourceUnit, exactly.
struct Decimal {
  std::int64_t digits = 0;  // without the point
  int decimals = 0;
};

}  // namespace

Result<std::int64_t> parse_amount(std::string_view name, std::string_view text) {
  Decimal number;
  std::size_t at = 0;
  bool point = false;
  bool any = false;
  for (; at < text.size() && (is_digit(text[at]) || (text[at] == '.' && !point)); ++at) {
    if (text[at] == '.') {
      point = true;
      continue;
    }
    any = true;
    if (number.digits > 100'000'000'000'000LL) return bad_amount(name, text, "too many digits");
    number.digits = number.digits * 10 + (text[at] - '0');
    if (point) ++number.decimals;
  }
  if (!any) return bad_amount(name, text, "no number");
  std::int64_t factor = 1;
  const std::string_view rest = text.substr(at);
  if (!rest.empty()) {
    const Suffix* found = nullptr;
    for (const Suffix& suffix : kSuffixes) {
      if (rest == suffix.text || (rest.size() == suffix.text.size() + 1 && rest.back() == 'B' &&
                                  rest.starts_with(suffix.text))) {
        found = &suffix;
        break;
      }
    }
    if (found == nullptr) return bad_amount(name, text, fmt::format("unknown unit '{}'", rest));
    factor = found->factor;
  }
  __int128 value = static_cast<__int128>(number.digits) * factor * wire::kResourceUnit;
  for (int i = 0; i < number.decimals; ++i) {
    // Fractions of a byte of a "1.3Gi" are cut; fractions of a plain number must be exact.
    if (value % 10 != 0 && factor == 1) {
      return bad_amount(name, text, fmt::format("more than {} decimals", kDecimalsMax));
    }
    value /= 10;
  }
  if (value > kAmountMax) {
    return bad_amount(name, text, "too large");
  }
  return static_cast<std::int64_t>(value);
}

Result<std::pair<std::string, std::int64_t>> parse_resource(std::string_view text) {
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  bool good = equals != std::string_view::npos && !name.empty() && name.size() <= 128;
  for (char c : name) {
    good = good && (is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    std::string_view("_-.:").find(c) != std::string_view::npos);
  }
  if (!good) {
    return error(Code::kInvalidArgument, "'{}' is not a resource: write NAME=AMOUNT, such as gpu=1",
                 text);
  }
  const std::int64_t amount = TROUPE_TRY(parse_amount(name, text.substr(equals + 1)));
  return std::pair(std::string(name), amount);
}

std::string format_amount(std::string_view name, std::int64_t amount) {
  if (name == kMemory) {
    const double bytes = static_cast<double>(amount) / static_cast<double>(wire::kResourceUnit);
    if (bytes >= 1024.0 * 1024 * 1024) return fmt::format("{:.4g} GiB", bytes / (1 << 30));
    if (bytes >= 1024.0 * 1024) return fmt::format("{:.4g} MiB", bytes / (1 << 20));
    return fmt::format("{:.0f} bytes", bytes);
  }
  const std::string_view sign = amount < 0 ? "-" : "";
  const std::uint64_t size =
      amount < 0 ? -static_cast<std::uint64_t>(amount) : static_cast<std::uint64_t>(amount);
  std::string text = fmt::format("{}{}", sign, size / wire::kResourceUnit);
  if (size % wire::kResourceUnit != 0) {
    text += fmt::format(".{:04}", size % wire::kResourceUnit);
    while (text.back() == '0') text.pop_back();
  }
  return text;
}

std::string format_resources(const wire::Resources& resources) {
  std::string text;
  for (const auto& [name, amount] : resources) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", name, format_amount(name, amount));
  }
  return text.empty() ? "nothing" : text;
}

Status validate(const wire::Resources& resources) {
  for (const auto& [name, amount] : resources) {
    if (name.empty()) return Status(Code::kInvalidArgument, "a resource has an empty name");
    if (amount < 0) {
      return error(Code::kInvalidArgument, "the amount of resource {} is negative ({})", name,
                   format_amount(name, amount));
    }
    if (amount > kAmountMax) {
      return error(Code::kInvalidArgument, "the amount of resource {} is too large ({})", name,
                   format_amount(name, amount));
    }
  }
  return {};
}

Status check_gpus(const wire::Resources& resources,
                  const std::map<std::string, std::string>& environment) {
  const std::int64_t gpus = amount_of(resources, kGpu);
  if (gpus > wire::kResourceUnit && gpus % wire::kResourceUnit != 0) {
    return error(Code::kInvalidArgument,
                 "{} GPUs are neither whole devices nor a part of one: ask for a whole number, or "
                 "for less than 1",
                 format_amount(kGpu, gpus));
  }
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}) {
    if (gpus == 0 || !environment.contains(name)) continue;
    return error(Code::kInvalidArgument,
                 "{} in the environment and {} GPUs do not go together: a node gives a process the "
                 "devices that it is to see. Leave the variable out, or ask for 0 GPUs",
                 name, format_amount(kGpu, gpus));
  }
  return {};
}

std::int64_t amount_of(const wire::Resources& resources, std::string_view name) {
  const auto found = resources.find(name);
  return found == resources.end() ? 0 : found->second;
}

bool fits(const wire::Resources& need, const wire::Resources& available) {
  for (const auto& [name, amount] : need) {
    if (amount > amount_of(available, name)) return false;
  }
  return true;
}

void add(wire::Resources& to, const wire::Resources& amount) {
  for (const auto& [name, value] : amount) {
    std::int64_t& sum = to[name];
    if (__builtin_add_overflow(sum, value, &sum)) sum = std::numeric_limits<std::int64_t>::max();
  }
}

void subtract(wire::Resources& from, const wire::Resources& amount) {
  for (const auto& [name, value] : amount) {
    if (value == 0) continue;
    std::int64_t& left = from[name];
    if (__builtin_sub_overflow(left, value, &left)) left = std::numeric_limits<std::int64_t>::min();
  }
}

}  // namespace troupe::scheduler

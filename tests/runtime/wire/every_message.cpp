#include "tests/runtime/wire/every_message.h"

#include <boost/pfr.hpp>

namespace troupe::tests {
namespace {

// "… [with Message = troupe::wire::Call; …]"
std::string last_name(std::string_view pretty) {
  pretty = pretty.substr(0, pretty.find_first_of(";]", pretty.find("Message = ")));
  return std::string(pretty.substr(pretty.rfind(':') + 1));
}

template <typename Message, typename Family>
void add(EveryMessage<Family>& all, const Aim* aim) {
  all.names.push_back(last_name(__PRETTY_FUNCTION__));
  all.filled.emplace_back(Filler(aim).make<Message>());
  Message none{};
  if constexpr (requires { none.protocol_version; }) none.protocol_version = 0;
  all.empty.emplace_back(std::move(none));
}

template <typename T>
bool same(const T& a, const T& b);

template <typename T, std::size_t... I>
bool same_fields(const T& a, const T& b, std::index_sequence<I...>) {
  return (same(boost::pfr::get<I>(a), boost::pfr::get<I>(b)) && ...);
}

template <typename T>
bool same(const T& a, const T& b) {
  if constexpr (requires { requires std::is_aggregate_v<T>; }) {
    return same_fields(a, b, std::make_index_sequence<boost::pfr::tuple_size_v<T>>());
  } else if constexpr (requires(const T& v) {
                         v.begin();
                         v.size();
                         requires std::is_aggregate_v<typename T::value_type>;
                       }) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!same(a[i], b[i])) return false;
    }
    return true;
  } else {
    return a == b;
  }
}

template <typename Message, typename Family>
bool both_same(const Family& a, const Family& b) {
  return holds_alternative<Message>(a) && holds_alternative<Message>(b) &&
         same(get<Message>(a), get<Message>(b));
}

template <std::size_t I, typename Family>
using At = std::variant_alternative_t<I, Family>;

}  // namespace

template <typename Family>
EveryMessage<Family> every_message(const Aim* aim) {
  EveryMessage<Family> all;
  [&]<std::size_t... I>(std::index_sequence<I...>) { (add<At<I, Family>>(all, aim), ...); }
  (std::make_index_sequence<std::variant_size_v<Family>>());
  return all;
}

template <typename Family>
bool same_message(const Family& a, const Family& b) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return (both_same<At<I, Family>>(a, b) || ...);
  }
  (std::make_index_sequence<std::variant_size_v<Family>>());
}

TROUPE_OF_FAMILIES()

}  // namespace troupe::tests

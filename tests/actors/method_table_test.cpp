#include "troupe/detail/method_table.h"

#include <doctest/doctest.h>

#include "troupe/actor.h"

namespace troupe {
namespace {

class Counter {
 public:
  Counter(int start, const std::string& label) : count_(start), label_(label) {}
  int add(int n) { return count_ += n; }
  int get() const noexcept { return count_; }
  void reset() { count_ = 0; }
  std::string label(const std::string& prefix, std::vector<int>&& extra) {
    return prefix + label_ + std::to_string(extra.size());
  }
  Result<int> divide(int by) {
    if (by == 0) return error(Code::kInvalidArgument, "division by zero");
    return count_ / by;
  }
  Status check() const { return error(Code::kDataLoss, "damaged"); }
  virtual int polymorphic() { return 1; }
  virtual ~Counter() = default;

  int save() const { return count_; }
  void load(int count) { count_ = count; }

  static constexpr std::uint32_t kStateVersion = 3;
  static constexpr auto constructor = troupe::constructor<int, const std::string&>;
  static constexpr auto methods =
      troupe::methods<&Counter::add, &Counter::get, &Counter::reset, &Counter::label,
                      &Counter::divide, &Counter::check, &Counter::polymorphic>;

 private:
  int count_;
  std::string label_;
};

class Renamed {
 public:
  long add(int n) { return n; }
  int get() { return 0; }
  static constexpr auto methods = troupe::methods<&Renamed::add, &Renamed::get>;
};

// The same methods, asynchronous; and streams of the same.
class Asynchronous {
 public:
  Task<int> add(int) { co_return 1; }
  Task<Result<int>> get() { co_return 1; }
  Task<void> reset() { co_return; }
  Task<Status> check() { co_return Status(); }
  static constexpr auto methods = troupe::methods<&Asynchronous::add, &Asynchronous::get,
                                                  &Asynchronous::reset, &Asynchronous::check>;
  static constexpr auto groups =
      troupe::concurrency_groups<troupe::ConcurrencyGroup<"g", 3, &Asynchronous::reset>>;
};
class Streaming {
 public:
  Stream<int> add(int) { co_return; }
  Stream<long> get() { co_return; }
  static constexpr auto methods = troupe::methods<&Streaming::add, &Streaming::get>;
};

using Traits = detail::ActorClassTraits<Counter>;

std::unique_ptr<detail::ActorInstance> make_counter() {
  const auto arguments = detail::encode_arguments(std::tuple<int, std::string>(10, "counter"));
  // The constructor takes no context, so a null one is never touched.
  alignas(16) static std::byte no_context[1];
  auto made = detail::actor_class<Counter>().create(reinterpret_cast<ActorContext&>(no_context),
                                                    arguments, {});
  REQUIRE(made.ok());
  return std::move(*made);
}

// Stands for its base, with a method more.
class Base {
 public:
  int add(int n) { return n; }
  static constexpr auto methods = troupe::methods<&Base::add>;
  using ActsAs = Base;
};
class Derived : public Base {
 public:
  int twice(int n) { return 2 * n; }
  static constexpr auto methods = troupe::methods<&Base::add, &Derived::twice>;
};

TEST_CASE("a class that acts as its base is known by the base's name, and has its methods") {
  const detail::ActorInterface base = detail::kActorInterface<Base>;
  const detail::ActorInterface derived = detail::kActorInterface<Derived>;
  CHECK(base.type == "Base");
  CHECK(derived.type == "Base");
  REQUIRE(derived.methods.size() == 2);
  CHECK(derived.methods[0].name == base.methods[0].name);
  CHECK(derived.methods[0].hash == base.methods[0].hash);
  CHECK(derived.methods[1].name == "twice");
}

TEST_CASE("names of classes and methods come from the compiler") {
  CHECK(Traits::kType == "Counter");
  CHECK(Traits::kSignatures[0].name == "add");
  CHECK(Traits::kSignatures[1].name == "get");
  CHECK(Traits::kSignatures[3].name == "label");
  CHECK(Traits::kSignatures[6].name == "polymorphic");
}

TEST_CASE("signatures differ where types do, not where only constness does") {
  const auto other = detail::ActorClassTraits<Renamed>::kSignatures;
  CHECK(Traits::kSignatures[0].hash != other[0].hash);
  CHECK(Traits::kSignatures[1].hash == other[1].hash);
}

TEST_CASE("callers cannot tell an asynchronous method; a stream is another thing") {
  const auto plain = Traits::kSignatures;
  const auto other = detail::ActorClassTraits<Asynchronous>::kSignatures;
  CHECK(plain[0].hash == other[0].hash);
  CHECK(plain[1].hash == other[1].hash);
  CHECK(plain[2].hash == other[2].hash);
  CHECK(plain[5].hash == other[3].hash);
  const auto streams = detail::ActorClassTraits<Streaming>::kSignatures;
  CHECK(plain[0].hash != streams[0].hash);
  CHECK(streams[0].hash != streams[1].hash);
}

TEST_CASE("what a class says of its concurrency") {
  const detail::ActorClass plain = detail::actor_class<Counter>();
  CHECK(plain.max_concurrency == 1);
  CHECK(plain.groups.empty());
  CHECK(plain.method_groups[3] == 0);
  const detail::ActorClass grouped = detail::actor_class<Asynchronous>();
  REQUIRE(grouped.groups.size() == 1);
  CHECK(grouped.groups[0].name == "g");
  CHECK(grouped.groups[0].limit == 3);
  CHECK(grouped.method_groups[0] == 0);
  CHECK(grouped.method_groups[2] == 1);
  CHECK(grouped.method_kinds[2] == detail::MethodKind::kTask);
}

TEST_CASE("a method's number is its place in the list") {
  using List = std::remove_cvref_t<decltype(Counter::methods)>;
  CHECK(detail::method_index<&Counter::add>(List{}) == 0);
  CHECK(detail::method_index<&Counter::reset>(List{}) == 2);
  CHECK(detail::method_index<&Renamed::add>(List{}) == List::kCount);
}

TEST_CASE("methods run on bytes") {
  auto counter = make_counter();
  auto sum = counter->invoke(0, encode_value(5), {});
  REQUIRE(sum.ok());
  CHECK(*decode_value<int>(*sum) == 15);
  CHECK(*decode_value<int>(*counter->invoke(1, {}, {})) == 15);
  CHECK(counter->invoke(2, {}, {})->empty());
  const auto arguments =
      detail::encode_arguments(std::tuple<std::string, std::vector<int>>("a ", {1, 2}));
  CHECK(*decode_value<std::string>(*counter->invoke(3, arguments, {})) == "a counter2");
  CHECK(counter->invoke(4, encode_value(0), {}).status().code() == Code::kInvalidArgument);
  CHECK(counter->invoke(5, {}, {}).status().code() == Code::kDataLoss);
  CHECK(counter->invoke(0, {}, {}).status().code() == Code::kProtocol);
}

TEST_CASE("state is saved, loaded, and refused in another version") {
  auto counter = make_counter();
  auto state = counter->save();
  REQUIRE(state);
  CHECK(state->version == 3);
  auto fresh = make_counter();
  REQUIRE(fresh->invoke(2, {}, {}).ok());
  REQUIRE(fresh->load(*state, {}).ok());
  CHECK(*decode_value<int>(*fresh->invoke(1, {}, {})) == 10);
  state->version = 2;
  CHECK(fresh->load(*state, {}).code() == Code::kFailedPrecondition);
}

TEST_CASE("const methods are known to leave the state alone") {
  const auto actor = detail::actor_class<Counter>();
  CHECK(actor.saves);
  CHECK_FALSE(actor.method_is_const[0]);
  CHECK(actor.method_is_const[1]);
}

}  // namespace
}  // namespace troupe

// Every mistake here must be refused with the message that compile_errors_test.cpp expects.

#include <troupe/actor.h>

#include <string_view>
#include <vector>

class Opaque {
 public:
  Opaque();
  virtual ~Opaque();

 private:
  int hidden_;
};

struct PointerArgument {
  void take(int n, int* p);
  static constexpr auto methods = troupe::methods<&PointerArgument::take>;
};
struct Request {
  std::string name;
  int* memory;
};
struct Batch {
  std::vector<Request> requests;
};
struct PointerInside {
  void take(const Batch& batch);
  static constexpr auto methods = troupe::methods<&PointerInside::take>;
};
struct ViewArgument {
  void take(std::string_view text);
  static constexpr auto methods = troupe::methods<&ViewArgument::take>;
};
struct OpaqueResult {
  Opaque give();
  static constexpr auto methods = troupe::methods<&OpaqueResult::give>;
};
struct OutParameter {
  void fill(std::string& out);
  static constexpr auto methods = troupe::methods<&OutParameter::fill>;
};
struct SameName {
  void put(int n);
  static constexpr auto methods = troupe::methods<&SameName::put, &SameName::put>;
};
struct NoMethods {};
struct WrongConstructor {
  explicit WrongConstructor(int n);
  void run();
  static constexpr auto methods = troupe::methods<&WrongConstructor::run>;
};

struct Account {
  virtual void deposit(int n) = 0;
  virtual void withdraw(int n) = 0;
  static constexpr auto methods = troupe::methods<&Account::deposit, &Account::withdraw>;
};
struct SwappedMethods : Account {
  using ActsAs = Account;
  void deposit(int n) override;
  void withdraw(int n) override;
  static constexpr auto methods = troupe::methods<&Account::withdraw, &Account::deposit>;
};
struct ChangingSave {
  void run();
  int save();
  void load(int n);
  static constexpr auto methods = troupe::methods<&ChangingSave::run>;
};
struct LoadsAlone {
  void run();
  void load(int n);
  static constexpr auto methods = troupe::methods<&LoadsAlone::run>;
};

struct NarrowArgument {
  void take(int n);
  static constexpr auto methods = troupe::methods<&NarrowArgument::take>;
};
auto narrow(const troupe::ActorHandle<NarrowArgument>& actor, std::int64_t n) {
  return actor.call<&NarrowArgument::take>(n);
}

struct ListArgument {
  void take(std::vector<int> list);
  static constexpr auto methods = troupe::methods<&ListArgument::take>;
};
auto size_for_a_list(const troupe::ActorHandle<ListArgument>& actor) {
  return actor.call<&ListArgument::take>(5);
}

template <typename T>
constexpr auto kSignatures = troupe::detail::ActorClassTraits<T>::kSignatures;

auto a = kSignatures<PointerArgument>;
auto b = kSignatures<ViewArgument>;
auto c = kSignatures<OpaqueResult>;
auto d = kSignatures<OutParameter>;
auto e = kSignatures<SameName>;
auto h = kSignatures<PointerInside>;
constexpr bool f = troupe::detail::check_actor_class<NoMethods>();
constexpr bool g = troupe::detail::ConstructorTraits<WrongConstructor>::check();
auto i = kSignatures<SwappedMethods>;
auto j = troupe::detail::actor_class<ChangingSave>();
auto k = troupe::detail::actor_class<LoadsAlone>();

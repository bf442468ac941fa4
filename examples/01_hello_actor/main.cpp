// The smallest Troupe program: one actor, in a process of its own, and two calls.
#include <cstdio>
#include <string>

#include <troupe/actor.h>
#include <troupe/cluster.h>

using namespace std::chrono_literals;

class Greeter {
 public:
  explicit Greeter(std::string greeting) : greeting_(std::move(greeting)) {}
  std::string greet(const std::string& name) {
    ++greeted_;
    return greeting_ + ", " + name + "!";
  }
  int greeted() const { return greeted_; }

  static constexpr auto constructor = troupe::constructor<std::string>;
  static constexpr auto methods = troupe::methods<&Greeter::greet, &Greeter::greeted>;

 private:
  std::string greeting_;
  int greeted_ = 0;
};

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Greeter>)) return *code;

  auto cluster = troupe::Cluster::start_embedded().value();
  auto greeter = cluster.spawn<Greeter>({.name = "greeter"}, "Hello").value();
  for (const char* name : {"Ada", "Alan"}) {
    std::printf("%s\n", greeter.call<&Greeter::greet>(name).get(10s).value().c_str());
  }
  std::printf("greeted %d\n", greeter.call<&Greeter::greeted>().get(10s).value());
}

// A field deep inside of an argument cannot travel: what the compiler says fits on a screen.

#include <troupe/actor.h>
#include <troupe/cluster.h>

struct Request {
  std::string name;
  int* memory;
};
struct Batch {
  std::vector<Request> requests;
};
class Worker {
 public:
  int take(const Batch& batch) { return static_cast<int>(batch.requests.size()); }
  static constexpr auto methods = troupe::methods<&Worker::take>;
};

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Worker>)) return *code;
  auto cluster = troupe::Cluster::start_embedded().value();
  auto worker = cluster.spawn<Worker>({.name = "worker"}).value();
  return worker.call<&Worker::take>(Batch{}).get().value();
}

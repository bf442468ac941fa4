// A host that does what its actor's class is called, for the tests of the node.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/memory/segment.h"
#include "runtime/process/host_channel.h"

namespace {

using namespace troupe;

struct Program {
  std::unique_ptr<net::RunnableLoop> loop = net::make_event_loop();
  process::HostChannel channel{*loop, UniqueFd(3)};
  std::vector<UniqueFd> kept;
  bool ignore_stop = false;

  void on_start(const wire::HostStart& start, UniqueFd saved) {
    const std::string& type = start.spec.type;
    ignore_stop = type == "Stubborn";
    if (type == "Crash") ::_exit(3);
    if (type == "Abort") ::kill(::getpid(), SIGKILL);
    if (type == "Fail") {
      (void)channel.send(wire::HostFailed{error(Code::kActorError, "no such luck")});
      ::_exit(1);
    }
    if (type == "Chatty") {
      for (int i = 1; i <= 3000; ++i) std::printf("line %d\n", i);
    }
    if (type == "Visible") {
      const char* devices = std::getenv("CUDA_VISIBLE_DEVICES");
      std::printf("sees %s\n", devices != nullptr ? devices : "everything");
    }
    if (type == "Parent" && ::fork() == 0) {
      while (true) ::pause();
    }
    if (type == "Saver") {
      char text[16] = {};
      if (saved.valid()) (void)!::pread(saved.get(), text, sizeof text - 1, 0);
      std::printf("saved: %s\n", text);
      auto segment = memory::Segment::create("test", 4096);
      std::snprintf(reinterpret_cast<char*>(segment->data()), 16, "generation %d",
                    static_cast<int>(start.generation));
      (void)channel.send(wire::HostSavedState{start.generation}, segment->fd());
      (void)channel.send(wire::HostAttachSegment{1, "weights", 5000});
      (void)channel.send(wire::HostKeepSegment{"weights", false}, segment->fd());
    }
    std::printf("%s run %s token %zu\n", type.c_str(), start.spec.run.c_str(), start.token.size());
    std::fprintf(stderr, "to stderr\n");
    std::fflush(stdout);
    (void)channel.send(wire::HostReady{});
  }

  void on_message(wire::HostMessage message, UniqueFd fd) {
    if (const auto* start = get_if<wire::HostStart>(&message)) {
      on_start(*start, std::move(fd));
    } else if (const auto* connection = get_if<wire::HostConnection>(&message)) {
      const std::string answer = "hello " + connection->target + "\n";
      (void)!::write(fd.get(), answer.data(), answer.size());
    } else if (const auto* reply = get_if<wire::HostAttachReply>(&message)) {
      char text[16] = {};
      if (fd.valid()) (void)!::pread(fd.get(), text, sizeof text - 1, 0);
      std::printf("attached: %s\n", reply->status.ok() ? text : reply->status.to_string().c_str());
      std::fflush(stdout);
    } else if (get_if<wire::HostStop>(&message)) {
      std::printf("asked to stop\n");
      std::fflush(stdout);
      if (!ignore_stop) loop->stop();
    }
  }
};

}  // namespace

int main() {
  ::signal(SIGPIPE, SIG_IGN);  // callers may be gone when they are handed over
  // Slow to start: what it is to run waits for it meanwhile.
  if (const char* gate = std::getenv("TROUPE_TEST_GATE")) {
    const UniqueFd opened(::open(gate, O_RDONLY | O_CLOEXEC));
  }
  Program program;
  program.loop->post([&] {
    program.channel.start(
        [&](wire::HostMessage m, UniqueFd fd) { program.on_message(std::move(m), std::move(fd)); },
        [](const Status&) { ::_exit(1); });
  });
  program.loop->run();
  return 0;
}

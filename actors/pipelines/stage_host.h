#pragma once
// The pipelines whose stage an actor's process is.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "actors/call_server.h"
#include "actors/pipelines/remote_line.h"
#include "actors/pipelines/stage_end.h"
#include "runtime/base/random.h"
#include "runtime/memory/wait_word.h"
#include "runtime/net/event_loop.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

// Loop thread.
class StageHost : public std::enable_shared_from_this<StageHost> {
 public:
  // `keeps_answers`: the class is kExactlyOnce. `host_page` may be null: then nothing is bound.
  StageHost(net::EventLoop& loop, std::shared_ptr<CallServer> server,
            std::shared_ptr<HostPageSegment> host_page, bool keeps_answers)
      : loop_(loop),
        server_(std::move(server)),
        host_page_(std::move(host_page)),
        keeps_answers_(keeps_answers) {
    if (host_page_) waker_ = memory::Waker(&host_page_->page().host_word);
  }

  // A local socket of a pipeline's owner. Where it ends, so does the binding.
  void accept(UniqueFd socket);
  // A connection of an owner on another node. Where it breaks, the owner has reconnect_timeout for
  // the next one: until then the binding stands.
  void accept_remote(ByteStream stream, std::string peer);
  void close();

 private:
  struct Line {
    UniqueFd socket;
    std::shared_ptr<net::Connection> connection;  // in its place, to another node
    std::shared_ptr<StageEnd> end;
    std::uint64_t end_number = 0;  // that no other binding has; of a local one 0
    std::uint64_t absence = 0;     // of one in away_: which
  };
  void on_readable(std::uint64_t number);
  Status take(Line& line, ArrivedStageMessage arrived);
  // `make`: the end.
  Status bind(Line& line, StageBinding binding,
              const std::function<Result<std::shared_ptr<StageEnd>>(StageBinding)>& make);
  Status take_frame(std::uint64_t number, std::span<const std::byte> frame,
                    std::span<const std::byte> bytes);
  Status bind_remote(std::uint64_t number, std::span<const std::byte> bytes);
  void end_line(std::uint64_t number);
  void wait_for_owner(Line line);
  void forget_too_many();
  void unbind(const std::shared_ptr<StageEnd>& end);

  net::EventLoop& loop_;
  const std::shared_ptr<CallServer> server_;
  const std::shared_ptr<HostPageSegment> host_page_;
  const bool keeps_answers_;
  memory::Waker waker_;  // of the actor's thread, for what comes by connections
  std::map<std::uint64_t, Line> lines_;
  std::map<ClientId, Line> away_;  // whose owners' connections broke
  // Tells this process from one in its place.
  const std::uint64_t process_ = SystemRandom().next_u64() | 1;
  std::uint64_t next_line_ = 0;
  std::uint64_t absences_ = 0;
};

}  // namespace troupe::detail

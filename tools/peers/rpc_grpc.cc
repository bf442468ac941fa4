// Calls through gRPC: the blocking stub for synchronous calls, a completion queue for asynchronous
// ones; the server answers from a completion queue, which is the fastest that gRPC has. See
// rpc_measure.h.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <thread>

#include "rpc_calls.grpc.pb.h"
#include "rpc_measure.h"

namespace {

using namespace rpc_measure;
using rpc_calls::Bytes;
using rpc_calls::Calls;
using rpc_calls::Number;
using rpc_calls::Sum;

std::string address_of(const Plan& plan) {
  return plan.way == "unix" ? "unix:" + plan.socket() : "127.0.0.1:" + std::to_string(plan.port);
}

// One call at the server: it waits for its request, answers, and waits for the next.
class Served {
 public:
  virtual ~Served() = default;
  virtual void go_on() = 0;
};

template <typename Request, typename Answer, typename Ask, typename Work>
class ServedCall final : public Served {
 public:
  ServedCall(Ask ask, Work work) : ask_(ask), work_(work) { await(); }
  void go_on() override {
    if (answering_) return await();
    answering_ = true;
    work_(request_, answer_);
    responder_->Finish(answer_, grpc::Status::OK, this);
  }

 private:
  void await() {
    answering_ = false;
    responder_.reset();
    context_ = std::make_unique<grpc::ServerContext>();
    responder_ = std::make_unique<grpc::ServerAsyncResponseWriter<Answer>>(context_.get());
    ask_(context_.get(), &request_, responder_.get(), this);
  }
  const Ask ask_;
  const Work work_;
  bool answering_ = false;
  std::unique_ptr<grpc::ServerContext> context_;
  Request request_;
  Answer answer_;
  std::unique_ptr<grpc::ServerAsyncResponseWriter<Answer>> responder_;
};
template <typename Request, typename Answer, typename Ask, typename Work>
std::unique_ptr<Served> served(Ask ask, Work work) {
  return std::make_unique<ServedCall<Request, Answer, Ask, Work>>(ask, work);
}

template <typename Ready>
void serve(const Plan& plan, Ready ready) {
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (plan.way == "tls") {
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({plan.text_of("key.pem"), plan.text_of("cert.pem")});
    credentials = grpc::SslServerCredentials(options);
  }
  grpc::ServerBuilder builder;
  Calls::AsyncService service;
  int port = 0;
  builder.AddListeningPort(plan.way == "unix" ? address_of(plan) : "127.0.0.1:0", credentials,
                           &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  if (!server) fail("the server did not start");
  std::vector<std::unique_ptr<Served>> calls;
  for (std::size_t i = 0; i < plan.window; ++i) {
    calls.push_back(served<Number, Number>(
        [&](auto* context, auto* request, auto* responder, void* tag) {
          service.RequestAdd(context, request, responder, queue.get(), queue.get(), tag);
        },
        [](const Number& request, Number& answer) { answer.set_n(request.n() + 1); }));
  }
  calls.push_back(served<Bytes, Sum>(
      [&](auto* context, auto* request, auto* responder, void* tag) {
        service.RequestLook(context, request, responder, queue.get(), queue.get(), tag);
      },
      [](const Bytes& request, Sum& answer) {
        answer.set_sum(look(request.bytes().data(), request.bytes().size()));
      }));
  ready(plan.way == "unix" ? 0 : port);
  void* tag = nullptr;
  bool good = false;
  while (queue->Next(&tag, &good)) {
    if (good) static_cast<Served*>(tag)->go_on();
  }
}

std::shared_ptr<grpc::Channel> connected(const Plan& plan, int number) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt("bench.number", number);  // so that no two channels share a connection
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (plan.way == "tls") {
    credentials = grpc::SslCredentials({plan.text_of("cert.pem"), "", ""});
    arguments.SetSslTargetNameOverride("localhost");
  }
  return grpc::CreateCustomChannel(address_of(plan), credentials, arguments);
}

void must(const grpc::Status& status) {
  if (!status.ok()) fail("gRPC: " + status.error_message());
}

void add(Calls::Stub& stub) {
  grpc::ClientContext context;
  Number request, answer;
  request.set_n(1);
  must(stub.Add(&context, request, &answer));
  if (answer.n() != 2) fail("another answer");
}

double async_rate(const Plan& plan, Calls::Stub& stub) {
  struct Open {
    std::unique_ptr<grpc::ClientContext> context;
    Number answer;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Number>> reader;
  };
  std::vector<Open> calls(plan.window);
  grpc::CompletionQueue queue;
  Number request;
  request.set_n(1);
  const auto begin = [&](Open& open) {
    open.reader.reset();
    open.context = std::make_unique<grpc::ClientContext>();
    open.reader = stub.AsyncAdd(open.context.get(), request, &queue);
    open.reader->Finish(&open.answer, &open.status, &open);
  };
  for (Open& open : calls) begin(open);
  std::size_t on_their_way = calls.size();
  Rate rate(plan);
  bool over = false;
  while (on_their_way > 0) {
    void* tag = nullptr;
    bool good = false;
    if (!queue.Next(&tag, &good) || !good) fail("gRPC: no answer");
    Open& open = *static_cast<Open*>(tag);
    must(open.status);
    over = over || !rate.go_on();
    if (over) {
      --on_their_way;
    } else {
      begin(open);
    }
  }
  return rate.rate();
}

void call(const Plan& plan) {
  int number = 0;
  first_calls(plan, "first", [&] {
    const std::shared_ptr<Calls::Stub> stub = Calls::NewStub(connected(plan, ++number));
    return [stub] { add(*stub); };
  });
  const auto stub = Calls::NewStub(connected(plan, ++number));
  sync_calls(plan, "sync", [&] { add(*stub); });
  row("async", async_rate(plan, *stub), "1/s");
  for (const auto& [name, bytes] : {std::pair{"1 MiB", kMiB}, std::pair{"64 MiB", 64 * kMiB}}) {
    Bytes request;
    request.set_bytes(argument(bytes));
    large_calls(plan, name, bytes, [&, size = bytes] {
      grpc::ClientContext context;
      Sum sum;
      must(stub->Look(&context, request, &sum));
      check_look(sum.sum(), size);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run(
      argc, argv, [](const auto& plan, auto ready) { serve(plan, ready); }, call);
}

#include "scheduler/client/jobs.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "runtime/wire/spec_size.h"

namespace troupe::scheduler {
namespace {

Result<wire::ControlMessage> ask(HeadClient& head, wire::ControlMessage message,
                                 Deadline deadline) {
  using Answer = Result<wire::ControlMessage>;
  auto promise = std::make_shared<std::promise<Answer>>();
  auto answer = promise->get_future();
  head.request(std::move(message),
               [promise](Answer result) { promise->set_value(std::move(result)); });
  if (answer.wait_until(deadline.time()) != std::future_status::ready) {
    return Status(Code::kDeadlineExceeded, "the head did not answer in time");
  }
  return answer.get();
}

Status no_such_answer(const Result<wire::ControlMessage>& answer) {
  Status status = answer_status(answer);
  if (!status.ok()) return status;
  return Status(Code::kProtocol, "the head gave an answer of another kind");
}

}  // namespace

Status submit_job(HeadClient& head, const std::string& name, wire::ActorSpec driver,
                  Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(wire::check_size(driver));
  return answer_status(
      ask(head, wire::SubmitJob{.name = name, .driver = std::move(driver)}, deadline));
}

Status stop_job(HeadClient& head, JobId job_id, Duration grace, const std::string& reason,
                Deadline deadline) {
  const auto grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace).count();
  return answer_status(
      ask(head, wire::StopJob{.job_id = job_id, .grace_ms = grace_ms, .reason = reason}, deadline));
}

Result<std::vector<wire::JobInfo>> list_jobs(HeadClient& head, bool include_ended,
                                             Deadline deadline) {
  auto answer = ask(head, wire::ListJobs{.include_ended = include_ended}, deadline);
  if (answer.ok()) {
    if (auto* list = get_if<wire::JobList>(&*answer)) return std::move(list->jobs);
  }
  return no_such_answer(answer);
}

Result<std::vector<wire::Endpoint>> find_package(HeadClient& head, const wire::Package& package,
                                                 Deadline deadline) {
  auto answer = ask(head, wire::FindPackage{.package = package}, deadline);
  if (answer.ok()) {
    if (auto* sources = get_if<wire::PackageSources>(&*answer)) return std::move(sources->nodes);
  }
  return no_such_answer(answer);
}

}  // namespace troupe::scheduler

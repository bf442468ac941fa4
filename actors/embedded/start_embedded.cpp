#include <utility>

#include "actors/own_cluster.h"
#include "scheduler/embedded/embedded_cluster.h"
#include "troupe/cluster.h"

namespace troupe {
namespace {

class Embedded final : public detail::OwnCluster {
 public:
  explicit Embedded(std::unique_ptr<scheduler::EmbeddedCluster> cluster)
      : cluster_(std::move(cluster)) {}
  const net::Address& head_address() const override { return cluster_->head_address(); }
  const net::Token& token() const override { return cluster_->token(); }
  NodeId node_id() const override { return cluster_->node_id(); }
  void wait_for_end(Duration timeout) override { cluster_->wait_for_end(timeout); }
  void stop() override { cluster_->stop(); }

 private:
  std::unique_ptr<scheduler::EmbeddedCluster> cluster_;
};

}  // namespace

Result<Cluster> Cluster::start_embedded(const EmbeddedOptions& options) {
  return start_own(options, [&](OnOutput on_output) -> Result<std::unique_ptr<detail::OwnCluster>> {
    scheduler::EmbeddedOptions embedded;
    embedded.num_cpus = options.num_cpus;
    embedded.resources = options.resources;
    embedded.labels = options.labels;
    embedded.log_dir = options.log_dir;
    embedded.log_level = options.log_level;
    embedded.on_output = std::move(on_output);
    embedded.output_limits = options.output_limits;
    embedded.object_memory_bytes = options.object_memory_bytes;
    embedded.object_spill_dir = options.object_spill_dir;
    embedded.host = options.host;
    embedded.port = options.port;
    embedded.token = options.token;
    auto cluster = TROUPE_TRY(scheduler::EmbeddedCluster::start(embedded));
    return std::unique_ptr<detail::OwnCluster>(std::make_unique<Embedded>(std::move(cluster)));
  });
}

}  // namespace troupe

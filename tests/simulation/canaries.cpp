#include "canaries.h"

namespace {

thread_local std::string planted;

}  // namespace

namespace troupe {

bool canary_planted(const char* name);
bool canary_planted(const char* name) { return planted == name; }

namespace simulation {

PlantedCanary::PlantedCanary(std::string name) { planted = std::move(name); }
PlantedCanary::~PlantedCanary() { planted.clear(); }

}  // namespace simulation
}  // namespace troupe

// What can be found wrong with a cluster before a process is started: key file, pages, checkpoint, tokenizer.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.hpp"

namespace troupe::node {

/// What the configuration says against the files that it names: the key file and the checkpoint's config.json are read,
/// and `pages` of each role must hold one sequence of `max_context` tokens. Weights are not looked at. `file` stands for the configuration in the problems. Milliseconds.
std::vector<config::problem> check_files(const config::settings& s, const std::string& file);

/// What is allowed and probably not meant, a sentence each: a code that does not bear the loss of a node, a cache that
/// is off for its block size.
std::vector<std::string> notes(const config::settings& s);

/// `check_files`, then the checkpoint as an engine opens it (weights are mapped, not read) and the tokenizer.
std::vector<config::problem> check_all(const config::settings& s, const std::string& file);

}  // namespace troupe::node

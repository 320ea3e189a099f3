// SimulatedWorld's directories.
#include <algorithm>
#include <cerrno>

#include "backends/nvme/tests/simulated_world.h"

namespace terrace {

std::shared_ptr<SimulatedWorld::Directory> SimulatedWorld::NewDirectory(const std::string& path) {
  auto directory = std::make_shared<Directory>();
  directory->stream = DrawOf(options_.seed, path);
  return directory;
}

SimulatedWorld::Node SimulatedWorld::Find(const std::string& path) const {
  Node node{.directory = root_};
  for (size_t at = 0; at < path.size() && node;) {
    const size_t end = std::min(path.find('/', at), path.size());
    if (end > at) {
      if (!node.directory) return {};
      const auto found = node.directory->names.find(path.substr(at, end - at));
      node = found == node.directory->names.end() ? Node() : found->second;
    }
    at = end + 1;
  }
  return node;
}

std::shared_ptr<SimulatedWorld::Directory> SimulatedWorld::ParentOf(const std::string& path,
                                                                    std::string* name) const {
  size_t end = path.size();
  while (end > 1 && path[end - 1] == '/') --end;
  const size_t slash = path.rfind('/', end - 1);
  if (slash == std::string::npos) return nullptr;
  *name = path.substr(slash + 1, end - slash - 1);
  return Find(path.substr(0, slash)).directory;
}

void SimulatedWorld::Change(Directory& directory, NameChange change) {
  for (auto& [name, node] : change) {
    if (node) {
      directory.names[name] = node;
    } else {
      directory.names.erase(name);
    }
  }
  directory.changes.push_back(std::move(change));
}

int SimulatedWorld::MakeDirectory(Caller who, const std::string& path) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  std::string name;
  const std::shared_ptr<Directory> parent = ParentOf(path, &name);
  if (!parent) return Leave(last, ENOENT);
  if (parent->names.contains(name)) return Leave(last, EEXIST);
  const Node made{.directory = NewDirectory(path)};
  Change(*parent, {{name, made}});
  return Leave(last, 0);
}

int SimulatedWorld::Remove(Caller who, const std::string& path) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  std::string name;
  const std::shared_ptr<Directory> parent = ParentOf(path, &name);
  if (!parent || !parent->names.contains(name)) return Leave(last, ENOENT);
  if (parent->names[name].directory) return Leave(last, EISDIR);
  Change(*parent, {{name, Node()}});
  return Leave(last, 0);
}

void SimulatedWorld::Empty(Directory& directory) {
  while (!directory.names.empty()) {
    const auto [name, node] = *directory.names.begin();
    if (node.directory) Empty(*node.directory);
    Change(directory, {{name, Node()}});
  }
}

int SimulatedWorld::RemoveDirectory(Caller who, const std::string& path) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  std::string name;
  const std::shared_ptr<Directory> parent = ParentOf(path, &name);
  if (!parent || !parent->names.contains(name)) return Leave(last, ENOENT);
  const Node node = parent->names[name];
  if (!node.directory) return Leave(last, ENOTDIR);
  Empty(*node.directory);
  Change(*parent, {{name, Node()}});
  return Leave(last, 0);
}

int SimulatedWorld::Rename(Caller who, const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  std::string old_name;
  std::string new_name;
  const std::shared_ptr<Directory> parent = ParentOf(from, &old_name);
  if (!parent || !parent->names.contains(old_name)) return Leave(last, ENOENT);
  if (parent != ParentOf(to, &new_name)) return Leave(last, EXDEV);
  const auto replaced = parent->names.find(new_name);
  if (replaced != parent->names.end() && replaced->second.directory) return Leave(last, ENOTEMPTY);
  if (old_name != new_name) {
    const Node node = parent->names[old_name];
    Change(*parent, {{old_name, Node()}, {new_name, node}});
  }
  return Leave(last, 0);
}

int SimulatedWorld::List(Caller who, const std::string& path, std::vector<std::string>* names) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  const Node node = Find(path);
  if (!node.directory) return Leave(last, node ? ENOTDIR : ENOENT);
  names->clear();
  for (const auto& [name, child] : node.directory->names) names->push_back(name);
  return Leave(last, 0);
}

int SimulatedWorld::IsDirectory(Caller who, const std::string& path, bool* is_directory) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  const Node node = Find(path);
  *is_directory = node.directory != nullptr;
  return Leave(last, node ? 0 : ENOENT);
}

int SimulatedWorld::SyncNames(Caller who, const std::string& path) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  if (last) return Leave(last, 0);
  const Node node = Find(path);
  if (!node.directory) return ENOENT;
  Directory& directory = *node.directory;
  const uint32_t rate = rates_[static_cast<size_t>(who.part)].failed_sync;
  // What a failed one had not reached stays as volatile as it was.
  if (rate > 0 && DrawOf(directory.stream, directory.ordinal++) % 10'000 < rate) return EIO;
  directory.durable_names = directory.names;
  directory.changes.clear();
  return 0;
}

int SimulatedWorld::Lock(Caller who, const std::string& path) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  return Leave(last, locks_.insert(path).second ? 0 : EAGAIN);
}

void SimulatedWorld::Unlock(Caller who, const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (who.life == life_) locks_.erase(path);
}

int SimulatedWorld::FreeBytes(Caller who, uint64_t* bytes) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  const uint64_t used = UsedIn(*root_);
  *bytes = used < options_.total_bytes ? options_.total_bytes - used : 0;
  return Leave(last, 0);
}

uint64_t SimulatedWorld::UsedIn(const Directory& directory) const {
  uint64_t bytes = 0;
  for (const auto& [name, node] : directory.names) {
    bytes += node.file ? node.file->charged_bytes() : UsedIn(*node.directory);
  }
  return bytes;
}

uint64_t SimulatedWorld::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return UsedIn(*root_);
}

uint64_t SimulatedWorld::UsedBelow(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const Node node = Find(path);
  return node.directory ? UsedIn(*node.directory) : node.file ? node.file->charged_bytes() : 0;
}

}  // namespace terrace

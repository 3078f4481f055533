//! Determines which shim and which runtime containerd starts for a container.
//!
//! containerd looks a shim up by its name in its search path, and the shim does the same for the
//! runtime. If both are absolute paths, no search path decides what runs as root.

use containerd_client::services::v1::container::Runtime;
use prost::Message as _;
use prost_types::Any;
use std::path::PathBuf;

/// containerd's name of its shim, looked up as `containerd-shim-runc-v2`.
const SHIM: &str = "io.containerd.runc.v2";
/// Type of the shim's options in containerd's messages.
const OPTIONS_TYPE: &str = "containerd.runc.v1.Options";

/// Absolute paths of what containerd starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// The shim.
    pub shim: PathBuf,
    /// The runtime, which the shim starts. It reads the specification of a new container where
    /// [`config_machine::specification::path`] says, below [`crate::Options::fifos`].
    pub runtime: PathBuf,
}

/// The fields of `containerd.runc.v1.Options` that are used here (containerd 1.7,
/// api/types/runc/options/oci.proto).
#[derive(Clone, PartialEq, prost::Message)]
struct ShimOptions {
    /// The owner of the pipes of a process's outputs; 0 is not encoded.
    #[prost(uint32, tag = "4")]
    io_uid: u32,
    #[prost(uint32, tag = "5")]
    io_gid: u32,
    #[prost(string, tag = "6")]
    binary_name: String,
}

/// The runtime of a container's record: by absolute paths, or as containerd finds it. Outputs of
/// the container's processes belong to `owner`, a user and group of the machine.
pub(crate) fn runtime(programs: Option<&Programs>, owner: u32) -> Runtime {
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let options = ShimOptions {
        io_uid: owner,
        io_gid: owner,
        binary_name: programs.map_or(String::new(), |all| text(&all.runtime)),
    };
    let options = Any {
        type_url: OPTIONS_TYPE.to_owned(),
        value: options.encode_to_vec(),
    };
    Runtime {
        name: programs.map_or_else(|| SHIM.to_owned(), |all| text(&all.shim)),
        options: Some(options),
    }
}

#[cfg(test)]
mod tests {
    use super::{Programs, runtime};

    #[test]
    fn absolute_paths_are_used_if_they_are_known() {
        let programs = Programs {
            shim: "/usr/bin/shim".into(),
            runtime: "/usr/bin/crun".into(),
        };
        let named = runtime(Some(&programs), 0);
        assert_eq!(named.name, "/usr/bin/shim");
        // Field 6, a string of 13 bytes.
        assert_eq!(named.options.unwrap().value, b"\x32\x0d/usr/bin/crun");
        let found = runtime(None, 65_536);
        assert_eq!(found.name, "io.containerd.runc.v2");
        // Fields 4 and 5, numbers of three bytes.
        assert_eq!(
            found.options.unwrap().value,
            b"\x20\x80\x80\x04\x28\x80\x80\x04"
        );
    }
}

//! The sets of packages that builds and tests need.

/// A named set of packages: roots, of which apt computes the dependencies, less what is never
/// unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Name in the lock file.
    pub name: String,
    /// Requested packages.
    pub roots: Vec<String>,
    /// Dependencies left out, by name or, with a trailing `*`, by how the name begins.
    pub leave_out: Vec<String>,
}

/// Dependencies that only maintainer scripts, shells or daemons of a full system need, and the
/// runtime that containerd would start by itself.
const SYSTEM: [&str; 25] = [
    "adduser",
    "bash",
    "bsdutils",
    "coreutils",
    "debconf*",
    "debianutils",
    "diffutils",
    "dpkg",
    "init-system-helpers",
    "initramfs-tools*",
    "linux-base",
    "login*",
    "lsb-*",
    "mount",
    "openssl",
    "passwd",
    "perl*",
    "procps",
    "runc",
    "sed",
    "sensible-utils",
    "systemd*",
    "tar",
    "tpm-udev",
    "util-linux*",
];

/// Dependencies of the image's packages whose files the image doesn't include.
const UNUSED: [&str; 30] = [
    "base-passwd",
    "gcc-14-base",
    "libacl1",
    "libapparmor1",
    "libattr1",
    "libaudit*",
    "libbsd0",
    "libbz2*",
    "libcap-ng0",
    "libcrypt1",
    "libdb5*",
    "libdebconf*",
    "libkmod2",
    "libmd0",
    "libmount1",
    "libpam*",
    "libpcre2*",
    "libselinux1",
    "libsemanage*",
    "libsepol2",
    "libsmartcols1",
    "libss2",
    "libsystemd-shared",
    "libtss2-tcti-libtpms*",
    "libtss2-tcti-spi*",
    "libtss2-tcti-swtpm*",
    "libudev1",
    "logsave",
    "openssl-provider-legacy",
    "udev",
];

impl Set {
    fn new(name: &str, roots: &[&str], leave_out: &[&str], also: &[&str]) -> Self {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let mut out = owned(leave_out);
        out.extend(owned(also));
        Self {
            name: name.to_owned(),
            roots: owned(roots),
            leave_out: out,
        }
    }

    /// Programs for builds, boots and tests on the host.
    pub fn tools() -> Self {
        let roots = [
            "busybox-static",
            "containerd",
            "crun",
            "cryptsetup-bin",
            "docker-registry",
            "e2fsprogs",
            "erofs-utils",
            "gnutls-bin",
            // Upstream's fixtures of every kind; of its dependencies nothing is wanted.
            "golang-k8s-api-dev",
            "kubectl",
            "mtools",
            "ovmf",
            "qemu-system-x86",
            "qemu-utils",
            "swtpm",
            "swtpm-tools",
            "tpm2-tools",
            "xz-utils",
            "zstd",
        ];
        Self::new(
            "tools",
            &roots,
            &SYSTEM,
            &[
                "golang-*",
                "python3*",
                "libpython3*",
                "udev",
                "media-types",
                "tzdata",
            ],
        )
    }

    /// The sources of the image's root, and the UEFI stub.
    pub fn image() -> Self {
        let roots = [
            "ca-certificates",
            "containerd",
            "crun",
            "e2fsprogs",
            "libgcc-s1",
            "libtss2-esys-3.0.2-0t64",
            "libtss2-mu-4.0.1-0t64",
            "libtss2-sys1t64",
            "libtss2-tcti-device0t64",
            "libtss2-tctildr0t64",
            "systemd-boot-efi",
        ];
        Self::new("image", &roots, &SYSTEM, &UNUSED)
    }

    /// The kernel of a flavour: `cloud-amd64` (virtual machines) or `amd64` (bare metal too).
    pub fn kernel(flavour: &str) -> Self {
        let roots = vec![format!("linux-image-{flavour}")];
        Self {
            name: format!("kernel-{flavour}"),
            roots,
            leave_out: Vec::new(),
        }
    }

    /// Whether a package of apt's answer is kept. Of a kernel's dependencies only kernels are.
    pub fn keeps(&self, name: &str) -> bool {
        if self.name.starts_with("kernel-") {
            return name.starts_with("linux-image-");
        }
        !self
            .leave_out
            .iter()
            .any(|out| match out.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == out,
            })
            || self.roots.iter().any(|root| root == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_kept_even_where_a_pattern_would_leave_them_out() {
        let set = Set::image();
        assert!(set.keeps("systemd-boot-efi"));
        assert!(!set.keeps("systemd"));
        assert!(!set.keeps("perl-base"));
        assert!(set.keeps("libc6"));
    }

    #[test]
    fn a_kernel_brings_kernels_only() {
        let set = Set::kernel("cloud-amd64");
        assert!(set.keeps("linux-image-6.12.1+deb13-cloud-amd64"));
        assert!(!set.keeps("kmod"));
    }
}

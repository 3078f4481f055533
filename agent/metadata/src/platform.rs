//! Which metadata service a machine has, by the firmware's description of the machine (DMI). Pure.
//!
//! The services are never probed: on a network of another owner, any server that answers first at
//! the link-local address could give the machine its user-data.

use std::str::FromStr;

/// A metadata service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// Amazon EC2, version 2 of its service (a token first).
    Ec2,
    /// Google Compute Engine.
    Gce,
    /// Microsoft Azure.
    Azure,
    /// OpenStack.
    OpenStack,
    /// Hetzner Cloud.
    Hetzner,
    /// DigitalOcean.
    DigitalOcean,
}

/// How a machine gets an address from which the service can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By DHCP.
    Lease,
    /// By a link-local address of its own: the network has no DHCP.
    LinkLocal,
}

/// The firmware's DMI strings for the machine (`/sys/class/dmi/id`), trimmed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dmi {
    /// `sys_vendor`
    pub sys_vendor: String,
    /// `product_name`
    pub product_name: String,
    /// `chassis_asset_tag`
    pub chassis_asset_tag: String,
}

/// What the image says about metadata services; on the verified root, so that it is measured with
/// the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// The one that the firmware names, if any.
    Auto,
    /// None, also where the firmware names one.
    Off,
    /// This one; the firmware is not asked.
    Fixed(Platform),
}

impl Platform {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Ec2,
        Self::Gce,
        Self::Azure,
        Self::OpenStack,
        Self::Hetzner,
        Self::DigitalOcean,
    ];

    /// Its name, which is the source's label in the measurement.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Gce => "gce",
            Self::Azure => "azure",
            Self::OpenStack => "openstack",
            Self::Hetzner => "hetzner",
            Self::DigitalOcean => "digitalocean",
        }
    }

    /// How to get an address for asking it.
    pub fn way(self) -> Way {
        match self {
            Self::Ec2 | Self::Gce | Self::Azure | Self::OpenStack | Self::Hetzner => Way::Lease,
            Self::DigitalOcean => Way::LinkLocal,
        }
    }

    /// The platform that the firmware names. Older machines without UEFI (EC2 on Xen, say) are left
    /// out: without a measured boot they could prove nothing.
    pub fn detect(dmi: &Dmi) -> Option<Self> {
        /// Microsoft's number for its own cloud; a Hyper-V elsewhere has another or none.
        const AZURE: &str = "7783-7084-3265-9085-8269-3286-77";
        const NOVA: [&str; 2] = ["OpenStack Nova", "OpenStack Compute"];
        /// Clouds that are OpenStack under another name in the product.
        const NOVA_TAGS: [&str; 4] = [
            "OpenStack Nova",
            "OpenStack Compute",
            "OpenTelekomCloud",
            "HUAWEICLOUD",
        ];
        match dmi {
            Dmi { sys_vendor, .. } if sys_vendor == "Amazon EC2" => Some(Self::Ec2),
            Dmi { product_name, .. } if product_name == "Google Compute Engine" => Some(Self::Gce),
            Dmi {
                chassis_asset_tag, ..
            } if chassis_asset_tag == AZURE => Some(Self::Azure),
            Dmi { sys_vendor, .. } if sys_vendor == "Hetzner" => Some(Self::Hetzner),
            Dmi { sys_vendor, .. } if sys_vendor == "DigitalOcean" => Some(Self::DigitalOcean),
            Dmi { product_name, .. } if NOVA.contains(&product_name.as_str()) => {
                Some(Self::OpenStack)
            }
            Dmi {
                chassis_asset_tag, ..
            } if NOVA_TAGS.contains(&chassis_asset_tag.as_str()) => Some(Self::OpenStack),
            Dmi { .. } => None,
        }
    }
}

/// The service that this machine asks, if any.
pub fn choose(setting: Setting, dmi: &Dmi) -> Option<Platform> {
    match setting {
        Setting::Auto => Platform::detect(dmi),
        Setting::Off => None,
        Setting::Fixed(platform) => Some(platform),
    }
}

/// Not the name of a metadata service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPlatform;

impl std::fmt::Display for UnknownPlatform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "not one of {}",
            Platform::ALL.map(Platform::label).join(", ")
        )
    }
}

impl std::error::Error for UnknownPlatform {}

impl FromStr for Platform {
    type Err = UnknownPlatform;

    fn from_str(text: &str) -> Result<Self, UnknownPlatform> {
        Self::ALL
            .into_iter()
            .find(|platform| platform.label() == text)
            .ok_or(UnknownPlatform)
    }
}

impl Setting {
    /// Reads the setting in the image's description. An empty one is `auto`; an unknown one counts
    /// as `off`, so that no service is asked by mistake.
    pub fn parse(word: &str) -> Self {
        match word {
            "" | "auto" => Self::Auto,
            word => word.parse().map_or(Self::Off, Self::Fixed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Dmi, Platform, Setting, choose};

    fn dmi(sys_vendor: &str, product_name: &str, chassis_asset_tag: &str) -> Dmi {
        let [sys_vendor, product_name, chassis_asset_tag] =
            [sys_vendor, product_name, chassis_asset_tag].map(str::to_owned);
        Dmi {
            sys_vendor,
            product_name,
            chassis_asset_tag,
        }
    }

    #[test]
    fn each_platform_is_known_by_its_firmware() {
        let table = [
            (
                dmi("Amazon EC2", "m7i.large", "Amazon EC2"),
                Some(Platform::Ec2),
            ),
            (
                dmi("Google", "Google Compute Engine", ""),
                Some(Platform::Gce),
            ),
            (
                dmi(
                    "Microsoft Corporation",
                    "Virtual Machine",
                    "7783-7084-3265-9085-8269-3286-77",
                ),
                Some(Platform::Azure),
            ),
            (
                dmi("OpenStack Foundation", "OpenStack Nova", ""),
                Some(Platform::OpenStack),
            ),
            (
                dmi("Red Hat", "OpenStack Compute", ""),
                Some(Platform::OpenStack),
            ),
            (
                dmi("Xen", "HVM domU", "OpenTelekomCloud"),
                Some(Platform::OpenStack),
            ),
            (dmi("Hetzner", "vServer", ""), Some(Platform::Hetzner)),
            (
                dmi("DigitalOcean", "Droplet", ""),
                Some(Platform::DigitalOcean),
            ),
        ];
        for (firmware, expected) in table {
            assert_eq!(Platform::detect(&firmware), expected, "{firmware:?}");
        }
    }

    #[test]
    fn firmware_that_only_looks_alike_is_no_platform() {
        for firmware in [
            Dmi::default(),
            dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)", ""),
            dmi("Microsoft Corporation", "Virtual Machine", "1234"),
            dmi("Google", "ChromeBook", ""),
            dmi("Amazon EC2 clone", "amazon ec2", ""),
            dmi("hetzner", "", ""),
        ] {
            assert_eq!(Platform::detect(&firmware), None, "{firmware:?}");
        }
    }

    #[test]
    fn the_image_has_the_last_word() {
        let (ec2, none) = (dmi("Amazon EC2", "", ""), Dmi::default());
        assert_eq!(choose(Setting::parse(""), &ec2), Some(Platform::Ec2));
        assert_eq!(choose(Setting::parse("auto"), &none), None);
        assert_eq!(choose(Setting::parse("off"), &ec2), None);
        assert_eq!(choose(Setting::parse("gce"), &ec2), Some(Platform::Gce));
        assert_eq!(choose(Setting::parse("???"), &ec2), None);
    }

    #[test]
    fn admins_and_image_builds_know_the_same_names() {
        let known = config_model::image::METADATA_SERVICES;
        assert_eq!(Platform::ALL.map(Platform::label), known);
        for label in known {
            assert!(
                config_model::machine::USER_DATA_SOURCES.contains(&label),
                "{label}"
            );
        }
    }
}

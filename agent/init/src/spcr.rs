//! The serial line that the firmware names for a console: ACPI's SPCR table (Microsoft's "Serial
//! Port Console Redirection Table", revisions 1 to 4), and which of the kernel's terminals it is.
//!
//! Guarantees: total over any bytes; a table that is short or names no address gives nothing.

use std::path::Path;

/// Where the kernel shows the table.
const TABLE: &str = "/sys/firmware/acpi/tables/SPCR";
const TERMINALS: &str = "/sys/class/tty";
/// Offsets in the table: the base address (a generic address structure, ACPI 6.5, 5.2.3.2) and the
/// speed.
const ADDRESS_SPACE: usize = 40;
const ADDRESS: std::ops::Range<usize> = 44..52;
const SPEED: usize = 58;

/// What a table names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// Where the line's registers are.
    pub address: Address,
    /// Bits a second; `None`: as the firmware left it.
    pub baud: Option<u32>,
}

/// Where a serial line's registers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// In memory.
    Memory(u64),
    /// Among the processor's ports.
    Port(u64),
}

/// Reads a table.
pub fn parse(table: &[u8]) -> Option<Named> {
    if !table.starts_with(b"SPCR") {
        return None;
    }
    let address = u64::from_le_bytes(table.get(ADDRESS)?.try_into().ok()?);
    let address = match (table.get(ADDRESS_SPACE)?, address) {
        // By the specification, no address.
        (_, 0) => return None,
        (0, at) => Address::Memory(at),
        (1, at) => Address::Port(at),
        (_, _) => return None,
    };
    let baud = match table.get(SPEED)? {
        3 => Some(9_600),
        4 => Some(19_200),
        6 => Some(57_600),
        7 => Some(115_200),
        _ => None,
    };
    Some(Named { address, baud })
}

/// The name of the terminal that the firmware names, such as `ttyS1`, and its speed.
pub fn terminal() -> Option<(String, Option<u32>)> {
    let named = parse(&std::fs::read(TABLE).ok()?)?;
    let found = terminal_at(Path::new(TERMINALS), named.address)?;
    Some((found, named.baud))
}

/// The terminal whose registers are at `address`, among those that the kernel lists.
fn terminal_at(list: &Path, address: Address) -> Option<String> {
    let (file, at) = match address {
        Address::Memory(at) => ("iomem_base", at),
        Address::Port(at) => ("port", at),
    };
    let is_it = |name: &String| {
        let text = std::fs::read_to_string(list.join(name).join(file)).unwrap_or_default();
        let shown = text
            .trim()
            .strip_prefix("0x")
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        name.starts_with("tty") && shown == Some(at)
    };
    let names = std::fs::read_dir(list)
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(is_it).min()
}

#[cfg(test)]
mod tests {
    use super::{Address, Named, parse, terminal_at};
    use proptest::prelude::*;

    fn table(space: u8, address: u64, speed: u8) -> Vec<u8> {
        let mut table = vec![0; 80];
        table[..4].copy_from_slice(b"SPCR");
        table[40] = space;
        table[44..52].copy_from_slice(&address.to_le_bytes());
        table[58] = speed;
        table
    }

    #[test]
    fn the_second_serial_port_of_a_server_is_found() {
        let named = parse(&table(1, 0x2F8, 7)).unwrap();
        assert_eq!(
            named,
            Named {
                address: Address::Port(0x2F8),
                baud: Some(115_200)
            }
        );
        let list = tempfile::tempdir().unwrap();
        for (name, port) in [
            ("ttyS0", "0x3F8"),
            ("ttyS1", "0x2F8"),
            ("ttyS2", "0x0"),
            ("tty0", ""),
        ] {
            std::fs::create_dir(list.path().join(name)).unwrap();
            std::fs::write(list.path().join(name).join("port"), format!("{port}\n")).unwrap();
        }
        assert_eq!(
            terminal_at(list.path(), named.address).as_deref(),
            Some("ttyS1")
        );
        assert_eq!(terminal_at(list.path(), Address::Memory(0x2F8)), None);
    }

    #[test]
    fn a_table_without_an_address_names_nothing() {
        assert_eq!(parse(&table(0, 0, 7)), None);
        assert_eq!(parse(&table(7, 0x2F8, 7)), None, "no memory and no port");
        assert_eq!(parse(&table(0, 0xFEDC_0000, 0)).unwrap().baud, None);
        assert_eq!(parse(b"SPCR"), None);
    }

    proptest! {
        #[test]
        fn any_table_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let whole = [b"SPCR".as_slice(), &bytes].concat();
            prop_assert!(parse(&whole).is_none_or(|named| named.address != Address::Port(0)));
            prop_assert!(bytes.starts_with(b"SPCR") || parse(&bytes).is_none());
        }
    }
}

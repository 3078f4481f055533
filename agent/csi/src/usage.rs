//! How much of a volume is used, from what its driver says (pure). The driver's numbers are hostile
//! input.

use crate::messages::{NodeGetVolumeStatsResponse, VolumeUsage, unit};

/// Amounts of one unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    /// What is free.
    pub available: u64,
    /// All there is.
    pub total: u64,
    /// What is used.
    pub used: u64,
}

/// How much of a volume is used. What a driver leaves out is zero, as in upstream's answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: Amounts,
    /// Files and folders.
    pub inodes: Amounts,
}

/// Reads a driver's answer.
///
/// # Errors
/// For a person: it has no amount of a known unit, or a negative one.
pub(crate) fn usage(response: &NodeGetVolumeStatsResponse) -> Result<Usage, String> {
    let of = |wanted: i32| {
        let found = response.usage.iter().find(|one| one.unit == wanted);
        found.map(amounts).transpose()
    };
    let (bytes, inodes) = (of(unit::BYTES)?, of(unit::INODES)?);
    if bytes.is_none() && inodes.is_none() {
        return Err("the driver reports neither bytes nor inodes".to_owned());
    }
    Ok(Usage {
        bytes: bytes.unwrap_or_default(),
        inodes: inodes.unwrap_or_default(),
    })
}

fn amounts(reported: &VolumeUsage) -> Result<Amounts, String> {
    let number = |number: i64| {
        let negative = || format!("the driver reports a negative amount: {number}");
        u64::try_from(number).map_err(|_negative| negative())
    };
    Ok(Amounts {
        available: number(reported.available)?,
        total: number(reported.total)?,
        used: number(reported.used)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_of(all: &[[i64; 4]]) -> Result<Usage, String> {
        let one = |&[available, total, used, unit]: &[i64; 4]| VolumeUsage {
            available,
            total,
            used,
            unit: i32::try_from(unit).unwrap(),
        };
        usage(&NodeGetVolumeStatsResponse {
            usage: all.iter().map(one).collect(),
        })
    }

    #[test]
    fn a_drivers_answer_counts_by_its_units_and_only_whole() {
        let amounts = |available, total, used| Amounts {
            available,
            total,
            used,
        };
        let found = usage_of(&[[9, 9, 9, 0], [5, 8, 3, 2], [10, 30, 20, 1], [1, 1, 1, 1]]).unwrap();
        assert_eq!(found.bytes, amounts(10, 30, 20));
        assert_eq!(found.inodes, amounts(5, 8, 3));
        let only = usage_of(&[[10, 30, 20, 1]]).unwrap();
        assert_eq!(only.inodes, Amounts::default());
        assert!(usage_of(&[]).is_err());
        assert!(usage_of(&[[1, 1, 1, 7]]).is_err());
        assert!(usage_of(&[[-1, 1, 1, 1]]).is_err());
    }
}

//! The parts of DER (X.690) that an Authenticode signature needs.

/// A value with a one-byte tag.
pub(crate) fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len().to_be_bytes();
    let bytes = &length[length
        .iter()
        .position(|b| *b != 0)
        .unwrap_or(length.len() - 1)..];
    if content.len() >= 0x80 {
        out.push(0x80 | u8::try_from(bytes.len()).unwrap_or(8));
    }
    out.extend_from_slice(bytes);
    out.extend_from_slice(content);
    out
}

/// SEQUENCE of parts.
pub(crate) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    value(0x30, &parts.concat())
}

/// SET of one part.
pub(crate) fn set(part: &[u8]) -> Vec<u8> {
    value(0x31, part)
}

/// OCTET STRING.
pub(crate) fn octets(content: &[u8]) -> Vec<u8> {
    value(0x04, content)
}

/// OBJECT IDENTIFIER, given its encoded content.
pub(crate) fn oid(content: &[u8]) -> Vec<u8> {
    value(0x06, content)
}

/// Takes one value off the front: (tag, content, whole value). Definite lengths up to four bytes.
pub(crate) fn take<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8], &'a [u8])> {
    let all = *bytes;
    let (tag, first) = (*all.first()?, *all.get(1)?);
    let (start, length) = match first {
        0..=0x7f => (2, usize::from(first)),
        0x81..=0x84 => {
            let count = usize::from(first & 0x7f);
            let digits = all.get(2..2 + count)?;
            (
                2 + count,
                digits.iter().fold(0, |n, d| n << 8 | usize::from(*d)),
            )
        }
        _ => return None,
    };
    let end = start.checked_add(length)?;
    let content = all.get(start..end)?;
    *bytes = &all[end..];
    Some((tag, content, &all[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_and_read_in_each_form() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let encoded = value(0x04, &vec![7; length]);
            let mut rest = &encoded[..];
            let (tag, content, whole) = take(&mut rest).unwrap();
            assert_eq!(
                (tag, content.len(), whole.len(), rest.len()),
                (4, length, encoded.len(), 0)
            );
        }
    }

    #[test]
    fn cut_values_are_refused() {
        assert!(take(&mut &[0x30, 0x82, 0x01][..]).is_none());
        assert!(take(&mut &[0x30, 0x05, 0x01][..]).is_none());
        assert!(take(&mut &[0x30, 0x80, 0, 0][..]).is_none());
    }
}

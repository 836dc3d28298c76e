package org.keras_ctxrep;

/** Finds pieces by their letters, whose hashes are those of their beginnings, continued. */
final class PieceTable {
    final int longest; // UTF-16 units of the longest piece
    private final String[] pieces;
    private final int[] hashes; // of each piece
    private final int[] slots; // open addressing: id + 1 of a piece, 0 where there is none

    /** Makes the table of pieces in the order of their ids, where null is not found. */
    PieceTable(String[] pieces) {
        this.pieces = pieces;
        hashes = new int[pieces.length];
        slots = new int[Integer.highestOneBit(Math.max(8, pieces.length)) * 4];
        int most = 0;
        for (int id = 0; id < pieces.length; id++) {
            if (pieces[id] == null) {
                continue;
            }
            hashes[id] = hash(0, pieces[id].toCharArray(), 0, pieces[id].length());
            int slot = slot(hashes[id]);
            while (slots[slot] != 0) {
                slot = (slot + 1) & (slots.length - 1);
            }
            slots[slot] = id + 1;
            most = Math.max(most, pieces[id].length());
        }
        longest = most;
    }

    /** The hash of what units continue, of which the hash is given; 0 is that of nothing. */
    static int hash(int before, char[] units, int from, int to) {
        int hash = before;
        for (int i = from; i < to; i++) {
            hash = hash * 31 + units[i];
        }
        return hash;
    }

    /** The id of the piece that is {@code lead} and some units, or -1; the hash is that of both. */
    int find(int hash, String lead, char[] units, int from, int to) {
        for (int slot = slot(hash); slots[slot] != 0; slot = (slot + 1) & (slots.length - 1)) {
            int id = slots[slot] - 1;
            String piece = pieces[id];
            if (hashes[id] == hash && piece.length() == to - from + lead.length() && piece.startsWith(lead)) {
                boolean equal = true;
                for (int i = from; equal && i < to; i++) {
                    equal = piece.charAt(lead.length() + i - from) == units[i];
                }
                if (equal) {
                    return id;
                }
            }
        }
        return -1;
    }

    private int slot(int hash) {
        int mixed = hash * 0x9E3779B1;
        return (mixed ^ (mixed >>> 15)) & (slots.length - 1);
    }
}

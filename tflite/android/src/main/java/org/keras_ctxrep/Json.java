package org.keras_ctxrep;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/** Reads JSON: objects as maps in the order of their keys, numbers as Long or Double, other values as in Java. */
final class Json {
    private static final int MAX_DEPTH = 100;
    private static final Pattern INTEGER = Pattern.compile("-?[0-9]{1,18}");

    private final String text;
    private int next;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    /**
     * The value of a JSON text.
     *
     * @throws IllegalArgumentException it is malformed, or nested more than 100 times
     */
    static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value();
        if (json.peek() != 0) {
            throw json.error("nothing more");
        }
        return value;
    }

    private Object value() {
        if (++depth > MAX_DEPTH) {
            throw error("fewer nested values");
        }
        Object value;
        switch (peek()) {
            case '{':
                value = object();
                break;
            case '[':
                value = array();
                break;
            case '"':
                value = string();
                break;
            case 't':
                value = literal("true", Boolean.TRUE);
                break;
            case 'f':
                value = literal("false", Boolean.FALSE);
                break;
            case 'n':
                value = literal("null", null);
                break;
            default:
                value = number();
        }
        depth--;
        return value;
    }

    private Map<String, Object> object() {
        Map<String, Object> object = new LinkedHashMap<>();
        expect('{');
        if (peek() != '}') {
            do {
                if (peek() != '"') {
                    throw error("a key");
                }
                String key = string();
                expect(':');
                object.put(key, value());
            } while (skip(','));
        }
        expect('}');
        return object;
    }

    private List<Object> array() {
        List<Object> array = new ArrayList<>();
        expect('[');
        if (peek() != ']') {
            do {
                array.add(value());
            } while (skip(','));
        }
        expect(']');
        return array;
    }

    private String string() {
        StringBuilder string = new StringBuilder();
        for (next++; ; next++) {
            if (next >= text.length() || text.charAt(next) < ' ') {
                throw error("the end of a string");
            }
            char unit = text.charAt(next);
            if (unit == '"') {
                next++;
                return string.toString();
            }
            string.append(unit == '\\' ? escaped() : unit);
        }
    }

    private char escaped() {
        char escape = ++next < text.length() ? text.charAt(next) : 0;
        if (escape == 'u' && next + 4 < text.length()) {
            int unit = 0;
            for (int end = next + 4; next < end; ) {
                int digit = Character.digit(text.charAt(++next), 16);
                if (digit < 0) {
                    throw error("a hexadecimal digit");
                }
                unit = 16 * unit + digit;
            }
            return (char) unit;
        }
        int known = "\"\\/bfnrt".indexOf(escape);
        if (known < 0) {
            throw error("an escape");
        }
        return "\"\\/\b\f\n\r\t".charAt(known);
    }

    private Object literal(String name, Object value) {
        if (!text.startsWith(name, next)) {
            throw error("a value");
        }
        next += name.length();
        return value;
    }

    private Object number() {
        int begin = next;
        while (next < text.length() && "+-.0123456789eE".indexOf(text.charAt(next)) >= 0) {
            next++;
        }
        String number = text.substring(begin, next);
        try {
            return INTEGER.matcher(number).matches() ? (Object) Long.valueOf(number) : Double.valueOf(number);
        } catch (NumberFormatException error) {
            next = begin;
            throw error("a value");
        }
    }

    /** The next character that is not white space, or 0 at the end. */
    private char peek() {
        while (next < text.length() && " \t\r\n".indexOf(text.charAt(next)) >= 0) {
            next++;
        }
        return next < text.length() ? text.charAt(next) : 0;
    }

    private boolean skip(char expected) {
        if (peek() != expected) {
            return false;
        }
        next++;
        return true;
    }

    private void expect(char expected) {
        if (!skip(expected)) {
            throw error("'" + expected + "'");
        }
    }

    private IllegalArgumentException error(String expected) {
        return new IllegalArgumentException("JSON: expected " + expected + " at character " + next);
    }
}

import js from "@eslint/js";
import globals from "globals";

const rules = {
  "array-callback-return": "error",
  "complexity": ["error", 14],
  "consistent-return": "error",
  "curly": ["error", "multi-line"],
  "eqeqeq": "error",
  "max-len": ["error", { code: 120, ignoreStrings: true, ignoreTemplateLiterals: true }],
  "max-lines": ["error", 500],
  "max-lines-per-function": ["error", { max: 60, skipBlankLines: true, skipComments: true }],
  "max-params": ["error", 8],
  "no-duplicate-imports": "error",
  "no-implicit-coercion": "error",
  "no-param-reassign": "error",
  "no-shadow": "error",
  "no-unused-vars": ["error", { args: "all", argsIgnorePattern: "^_" }],
  "no-use-before-define": ["error", { functions: false, classes: false, variables: false }],
  "no-var": "error",
  "object-shorthand": "error",
  "prefer-const": "error",
  "prefer-template": "error",
};

export default [
  { ignores: ["bgad/service/web/lib/vendor/"] },
  js.configs.recommended,
  { files: ["bgad/service/web/**/*.js"], languageOptions: { globals: globals.browser }, rules },
  { files: ["tests/web/**/*.js", "eslint.config.js"], languageOptions: { globals: globals.node }, rules },
];
